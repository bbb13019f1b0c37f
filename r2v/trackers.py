"""Experiment trackers: figures of a running stage go to wandb, tensorboard and others.

    with tracked(run) as log_end:                           # figures of every Progress and curve within
        log_end({"auroc": 0.9})
    python -m r2v.trackers logs/trackers/ID.jsonl NAME      # the process of one tracker

Each tracker has a separate process, which reads the figures from a file (`r2v.log.curve`). A tracker that is missing,
raises, hangs or dies costs a log line and some seconds at the stage's end, never the run; the file is then kept, and
the command above sends it again. If its stage was killed, the process ends its run as failed. wandb is called directly,
so that all attempts at an artifact are one run; the others are accelerate's trackers, with a run for each attempt.
"""

from __future__ import annotations

import importlib.util
import json
import netrc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any
from urllib.parse import urlsplit

from r2v.environment import not_for_stages
from r2v.log import CURVES_FILE, curve, curve_line, logger
from r2v.redaction import redacted, secrets_here

TRACKER_PROJECT = "r2v-agent"
"""Default project of the runs, without WANDB_PROJECT."""
TRACKER_GROUP = "R2V_EXPERIMENT"
"""Environment variable with this run's experiment, whose runs form a group."""
TRACKER_PATIENCE = 60.0
"""Seconds that a finished stage waits for its trackers."""
_PATIENCE_FAILED = 10.0
"""Seconds that a failed or stopped stage waits; its job may soon be killed."""
_LOOK = 0.5
"""Seconds between two reads at the end of the file."""
_OWN_KEYS = {
    "comet_ml": ("COMET_",),
    "mlflow": ("MLFLOW_", "DATABRICKS_", "AWS_", "AZURE_"),
    "trackio": ("TRACKIO_", "HF_"),
}
"""Prefixes of the secret variables that a tracker sees; by default its own name."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A stage's run in the trackers, the same for all attempts at its artifact; a chain's runs form a group."""

    trackers: tuple[str, ...] | None
    """Names of `logging.trackers`; None: wandb if it is set up."""
    project: str
    id: str
    job: str
    group: str
    config: Mapping[str, Any]
    """Dotted key -> value. Secrets are redacted for trackers."""
    folder: Path
    """Parent of the folders for trackers' files."""


def wandb_mode(mode: str) -> str:
    """Return wandb's effective mode: disabled, offline or online. WANDB_MODE takes precedence; `auto` is online with a
    key of `wandb login` or WANDB_API_KEY. A missing package or key for the mode is logged."""
    mode = {"run": "online", "dryrun": "offline"}.get(chosen := os.environ.get("WANDB_MODE", mode), chosen)
    key = bool(os.environ.get("WANDB_API_KEY")) or _has_login()
    if mode == "auto":
        return "online" if key and importlib.util.find_spec("wandb") is not None else "disabled"
    if mode not in ("online", "offline") or not _installed("wandb"):
        return "disabled"
    if mode == "online" and not key:
        logger.warning(
            "wandb is offline without a key: remedy=set WANDB_API_KEY or run `wandb login`, then `wandb sync`"
        )
        return "offline"
    return mode


def _has_login() -> bool:
    """True if `wandb login` has left a key in the user's netrc."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _installed(name: str) -> bool:
    if importlib.util.find_spec(name) is not None:
        return True
    logger.warning("tracker not installed, no figures sent: tracker=%s remedy=%s", name, f"pip install {name}")
    return False


@contextmanager
def tracked(run: TrackedRun) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Send the figures of every Progress, of this process and its ranks, and of `curve` within the block to the
    trackers; yield the function for final figures. A failing tracker never ends the block, and delays its end by at
    most TRACKER_PATIENCE."""
    mode = "disabled"
    if run.trackers is None or "wandb" in run.trackers:
        mode = wandb_mode("auto" if run.trackers is None else "online")
    names = [name for name in run.trackers or () if name != "wandb" and _installed(name)]
    if mode != "disabled":
        names.append("wandb")
    if not names:
        yield lambda figures: None
        return
    curves = run.folder / "trackers" / f"{run.id}.jsonl"
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        curves.parent.mkdir(parents=True, exist_ok=True)
        record = {**asdict(run), "config": redacted(dict(run.config)), "mode": mode, "folder": str(run.folder)}
        curves.write_text(json.dumps({"run": record}, default=str) + "\n")
        os.environ[CURVES_FILE] = str(curves)
        for name in names:
            processes[name] = _started(name, curves)
    except (OSError, TypeError, ValueError) as error:
        failed = ",".join(name for name in names if name not in processes)
        logger.warning("trackers failed to start, no figures sent: trackers=%s error=%s", failed, error)
    code = 1
    try:
        yield curve
        code = 0
    finally:
        curve_line({"end": code})
        os.environ.pop(CURVES_FILE, None)
        end = time.monotonic() + (min(TRACKER_PATIENCE, _PATIENCE_FAILED) if code else TRACKER_PATIENCE)
        complete = [_ended(name, process, curves, end) for name, process in processes.items()]
        if all(complete):
            with suppress(OSError):
                curves.unlink()


def _started(name: str, curves: Path) -> subprocess.Popen[bytes]:
    """Start a tracker's process, with only its own secrets, output to a file, and not interrupted by Ctrl-C."""
    own = _OWN_KEYS.get(name, (f"{name.upper()}_",))
    hidden = {variable for variable in secrets_here() if not variable.startswith(own)}
    environment = {variable: value for variable, value in os.environ.items() if variable not in hidden}
    words = [sys.executable, "-m", __name__, str(curves), name]
    with Path(f"{curves}.{name}.log").open("wb") as file:
        return subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def _ended(name: str, process: subprocess.Popen[bytes], curves: Path, end: float) -> bool:
    """Wait for a tracker's process until `end`; True if it sent everything. Otherwise the kept file is logged."""
    try:
        code: int | None = process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if process.returncode is None:
            with suppress(OSError):
                os.killpg(process.pid, SIGKILL)
            process.wait()
    printed = Path(f"{curves}.{name}.log")
    reason = "it did not end in time" if code is None else f"ended by signal {-code}" if code < 0 else ""
    with suppress(OSError):
        reason = reason or printed.read_text(errors="replace").strip().rpartition("\n")[2][:200]
        if code == 0:
            printed.unlink()
    if code != 0:
        logger.warning(
            "tracker incomplete, figures kept: tracker=%s reason=%s remedy=%s",
            *(name, reason, f"send them again by {sys.executable} -m r2v.trackers {curves} {name}"),
        )
    return code == 0


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the stage's lines until it ends or its process is gone."""
    stage = os.getppid()
    with path.open() as file:
        pending = ""
        while True:
            pending += file.readline()
            if pending.endswith("\n"):
                yield json.loads(pending)
                pending = ""
            elif os.getppid() != stage:
                yield {"end": 1}
            else:
                time.sleep(_LOOK)


def _outlive(stage: int) -> None:
    """End this process TRACKER_PATIENCE after its stage is gone, even if a tracker hangs."""
    while os.getppid() == stage:
        time.sleep(_LOOK)
    time.sleep(TRACKER_PATIENCE)
    os._exit(1)


Log = Callable[[dict[str, float]], Any]
Finish = Callable[[int], Any]


def _wandb(run: dict[str, Any]) -> tuple[Log, Finish]:
    import wandb

    mine = wandb.init(
        project=run["project"],
        name=run["job"],
        group=run["group"],
        id=run["id"],
        resume="allow" if run["mode"] == "online" else None,
        config=run["config"],
        mode=run["mode"],
        dir=run["folder"],
        settings=wandb.Settings(silent=True, console="off"),
    )
    return mine.log, mine.finish


def _of_accelerate(name: str, run: dict[str, Any]) -> tuple[Log, Finish]:
    """Open one of accelerate's trackers, with its files in a folder of its name."""
    for variables in not_for_stages(os.environ).values():  # accelerate would treat this process as a rank
        for variable in variables:
            del os.environ[variable]
    folder = Path(run["folder"]).absolute() / name
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

    PartialState(cpu=True)
    if not filter_trackers([name], folder):
        raise ModuleNotFoundError(f"accelerate finds no {name} that it can use")
    kind, id = LOGGER_TYPE_TO_CLASS[name], run["id"]
    directory = {"logging_dir": str(folder)} if kind.requires_logging_directory else {}
    named = {"mlflow": "run_name", "clearml": "task_name", "swanlab": "experiment_name", "trackio": "name"}
    title = {named[name]: id} if name in named else {"dir": id} if name == "dvclive" else {}
    own = {"tensorboard": f"{id}/{time.strftime('%Y%m%dT%H%M%S')}", "aim": id}.get(name, run["project"])
    tracker = kind(own, **directory, **title)
    tracker.start()
    plain = (bool, int, float, str)
    tracker.store_init_configuration({k: v if isinstance(v, plain) else str(v) for k, v in run["config"].items()})
    steps = iter(range(sys.maxsize))
    return lambda figures: tracker.log(figures, step=next(steps)), lambda code: tracker.finish()


def main() -> int:
    """Send the figures of a file to a tracker, both from the command line; return the exit code."""
    threading.Thread(target=_outlive, args=(os.getppid(),), daemon=True).start()
    source, name = _lines(Path(sys.argv[1]).absolute()), sys.argv[2]
    run = next(source)["run"]
    log, finish = _wandb(run) if name == "wandb" else _of_accelerate(name, run)
    for line in source:
        if "end" in line:
            finish(line["end"])
            break
        log(line["log"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
