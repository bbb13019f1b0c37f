"""Durations: wall and CPU time of finished stages, the basis of later cost estimates.

    record(root, Duration(job="bc", fingerprint=key, seconds=412.0, cpu_seconds=401.2, device="cpu", cpus=8))
    recorded(root, "bc")            # the newest first

One small file per finished attempt, `outputs/.durations/<job>-<fingerprint>.json`, outside the artifact, whose bytes do
not depend on time. Only uninterrupted attempts by one process without cached episodes are recorded: the time of half a
stage would mislead.
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
"""Folder of the records."""
CPU = "cpu"
"""The device of a machine without a GPU."""
_NEWEST = 20  # the latest attempts suffice for an estimate

log = logging.getLogger("r2v")


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Duration of one finished attempt, which the `config.yaml` in its folder describes."""

    job: str
    fingerprint: str
    seconds: float
    """Wall time."""
    cpu_seconds: float
    """CPU time of this process, its threads included."""
    device: str
    """Name of the GPU, or cpu."""
    cpus: int
    """CPUs available to this process."""
    published: bool = True
    """False for a stage of an ablation or a sweep, which reuses cached episodes and replies of the pipeline."""


def device_here() -> str:
    """Return the name of the GPU in use, or "cpu" if torch has none or is not loaded."""
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else CPU


def record(root: Path, duration: Duration) -> None:
    """Write a duration; the last attempt of a fingerprint counts. A write error is logged, never raised."""
    path = root / DURATIONS / f"{duration.job}-{duration.fingerprint}.json"
    try:
        write_json(path, hashed(asdict(duration)))
    except (OSError, R2VError) as error:  # the stage itself is done
        log.warning("  duration not recorded: file=%s error=%s", path, " ".join(str(error).split())[:120])


def recorded(root: Path, job: str) -> list[Duration]:
    """Return the latest durations of a job, newest first. Damaged records are logged and skipped."""
    paths = [path for path in (root / DURATIONS).glob(f"{job}-*.json") if stat.S_ISREG(path.lstat().st_mode)]
    durations = []
    for path in sorted(paths, key=lambda path: path.lstat().st_mtime, reverse=True)[:_NEWEST]:
        try:
            duration = _checked(Duration(**read_hashed(path)))
            if duration.job == job:
                durations.append(duration)
        except (OSError, TypeError, ValueError, InputError) as error:  # an estimate from fewer records is still one
            log.warning("  duration skipped: file=%s error=%s", path, " ".join(str(error).split())[:120])
    return durations


def _checked(duration: Duration) -> Duration:
    """Return the duration. Raise ValueError if a field has a wrong type or range."""
    texts = (duration.job, duration.fingerprint, duration.device)
    numbers = (duration.seconds, duration.cpu_seconds, duration.cpus)
    sound = all(isinstance(text, str) for text in texts) and duration.fingerprint.isalnum()
    if not sound or not all(isinstance(number, int | float) and 0 <= number < math.inf for number in numbers):
        raise ValueError("it is no duration")
    return duration
