"""Durations: how long the stages of a project took, from start to end, for a later plan to go by.

    record(root, Duration(job="bc", fingerprint=key, seconds=412.0, cpu_seconds=401.2, device="cpu", cpus=8))
    recorded(root, "bc")            # the newest first

One small file for each finished attempt, `outputs/.durations/<job>-<fingerprint>.json`: a clock's word has no place in
an artifact, which holds the same bytes whenever it is made. Only attempts that were made in one go are recorded, by one
process, with nothing found played: the time of half a stage would mislead.
"""

from __future__ import annotations

import logging
import math
import stat
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from r2v.errors import InputError, R2VError
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed, read_hashed

DURATIONS = Path("outputs/.durations")
"""Where they lie."""
CPU = "cpu"
"""The device of a machine without a GPU."""
_NEWEST = 20

log = logging.getLogger("r2v")


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Of one finished attempt; what it made is described by `config.yaml` in its folder."""

    job: str
    fingerprint: str
    seconds: float
    """From start to end by the clock."""
    cpu_seconds: float
    """Of this process, its threads included."""
    device: str
    """Name of the GPU, or cpu."""
    cpus: int
    """That this process may use."""
    published: bool = True
    """False for a stage of an ablation or a sweep, which finds plays and replies of the pipeline in memory."""


def device_here() -> str:
    """The GPU that torch sees in this process; cpu where it sees none, or was not needed so far."""
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else CPU


def record(root: Path, duration: Duration) -> None:
    """Write one down; the last attempt of a fingerprint counts. A disk that refuses it stops no stage that is done."""
    path = root / DURATIONS / f"{duration.job}-{duration.fingerprint}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, hashed(asdict(duration)))
    except (OSError, R2VError) as error:
        log.warning("  %s: not written, no plan will go by it: %s", path, " ".join(str(error).split())[:120])


def recorded(root: Path, job: str) -> list[Duration]:
    """The newest durations of a job, the newest first. What is not as it was written is passed over with a line."""
    paths = [path for path in (root / DURATIONS).glob(f"{job}-*.json") if stat.S_ISREG(path.lstat().st_mode)]
    found = []
    for path in sorted(paths, key=lambda path: path.lstat().st_mtime, reverse=True)[:_NEWEST]:
        try:
            one = _checked(Duration(**read_hashed(path)))
            if one.job == job:
                found.append(one)
        except (OSError, TypeError, ValueError, InputError) as error:
            log.warning("  %s: %s; no plan goes by it", path, " ".join(str(error).split())[:120])
    return found


def _checked(one: Duration) -> Duration:
    """The duration. Raises ValueError where it is none, though its hash holds."""
    texts, numbers = (one.job, one.fingerprint, one.device), (one.seconds, one.cpu_seconds, one.cpus)
    sound = all(isinstance(text, str) for text in texts) and one.fingerprint.isalnum()
    if not sound or not all(isinstance(number, int | float) and 0 <= number < math.inf for number in numbers):
        raise ValueError("it is no duration")
    return one
