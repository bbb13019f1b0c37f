"""Trackers by name: the figures of a stage go to wandb, tensorboard and others as they come.

    with tracked(run) as log_end:                           # figures of every Progress and curve within
        log_end({"auroc": 0.9})
    python -m r2v.trackers logs/trackers/ID.jsonl NAME      # the process of one tracker

Each tracker has a process of its own, which reads the figures from a file (`r2v.log.curve`). One that is missing,
raises, hangs or dies costs a line and some seconds at the stage's end, never the run; the file is then kept, and the
command above sends it again. A process whose stage was killed ends its run as failed. wandb is called directly, so that
the attempts at an artifact are one run; the others are accelerate's trackers, with a run for each attempt.
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
"""Project of the runs where the variable WANDB_PROJECT names none."""
TRACKER_GROUP = "R2V_EXPERIMENT"
"""The environment variable that names the experiment of which this process is a run: its runs are one group."""
TRACKER_PATIENCE = 60.0
"""Seconds that a finished stage waits for its trackers to send what is left."""
_PATIENCE_FAILED = 10.0
"""The same for a stage that failed or was stopped, whose job may soon be killed."""
_LOOK = 0.5
"""Seconds between two looks at the file."""
_OWN_KEYS = {
    "comet_ml": ("COMET_",),
    "mlflow": ("MLFLOW_", "DATABRICKS_", "AWS_", "AZURE_"),
    "trackio": ("TRACKIO_", "HF_"),
}
"""Beginnings of the variables with secrets that a tracker sees; of the others, its own name."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A stage's run in the trackers, the same for all attempts at its artifact; the runs of a chain are one group."""

    trackers: tuple[str, ...] | None
    """Names of `logging.trackers`; None: wandb where it is set up."""
    project: str
    id: str
    job: str
    group: str
    config: Mapping[str, Any]
    """Values by dotted key. Secrets among them reach no tracker."""
    folder: Path
    """Trackers that write files write them below, in a folder of their name."""


def wandb_mode(mode: str) -> str:
    """Return a mode of wandb as it is here: disabled, offline or online. WANDB_MODE wins over it; `auto` is online once
    `wandb login` or WANDB_API_KEY has left a key. A line tells what is lacking for another mode."""
    mode = {"run": "online", "dryrun": "offline"}.get(chosen := os.environ.get("WANDB_MODE", mode), chosen)
    key = bool(os.environ.get("WANDB_API_KEY")) or _has_login()
    if mode == "auto":
        return "online" if key and importlib.util.find_spec("wandb") is not None else "disabled"
    if mode not in ("online", "offline") or not _installed("wandb"):
        return "disabled"
    if mode == "online" and not key:
        logger.warning("wandb: no key, so offline; set WANDB_API_KEY or run `wandb login`, then `wandb sync`")
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
    logger.warning("logging.trackers: %s is not installed, nothing is logged there; pip install %s", name, name)
    return False


@contextmanager
def tracked(run: TrackedRun) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Within the block the figures of every Progress, of this process and of its ranks, and those of `curve` go to the
    trackers; yield the function that sends those of the end. No tracker ends or stops the block, or delays its end by
    more than TRACKER_PATIENCE."""
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
        logger.warning("trackers: %s; no figures go to %s", error, ", ".join(n for n in names if n not in processes))
    code = 1
    try:
        yield curve
        code = 0
    finally:
        curve_line({"end": code})
        os.environ.pop(CURVES_FILE, None)
        end = time.monotonic() + (min(TRACKER_PATIENCE, _PATIENCE_FAILED) if code else TRACKER_PATIENCE)
        taken = [_ended(name, process, curves, end) for name, process in processes.items()]
        if all(taken):
            with suppress(OSError):
                curves.unlink()


def _started(name: str, curves: Path) -> subprocess.Popen[bytes]:
    """Start a tracker's process. It has no secret but its own, prints into a file, and is no target of Ctrl-C."""
    own = _OWN_KEYS.get(name, (f"{name.upper()}_",))
    hidden = {variable for variable in secrets_here() if not variable.startswith(own)}
    environment = {variable: value for variable, value in os.environ.items() if variable not in hidden}
    words = [sys.executable, "-m", __name__, str(curves), name]
    with Path(f"{curves}.{name}.log").open("wb") as file:
        return subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )


def _ended(name: str, process: subprocess.Popen[bytes], curves: Path, end: float) -> bool:
    """Wait for a tracker's process until `end`; True if it has taken everything. A line says what is kept if not."""
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
            "%s did not take all figures (%s); they are kept, to send them again: %s -m r2v.trackers %s %s",
            *(name, reason, sys.executable, curves, name),
        )
    return code == 0


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of the stage until it ends or is gone."""
    stage = os.getppid()
    with path.open() as file:
        kept = ""
        while True:
            kept += file.readline()
            if kept.endswith("\n"):
                yield json.loads(kept)
                kept = ""
            elif os.getppid() != stage:
                yield {"end": 1}
            else:
                time.sleep(_LOOK)


def _outlive(stage: int) -> None:
    """End this process some time after its stage is gone, also where a tracker hangs."""
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
    """Open one of accelerate's trackers, whose files go into a folder of its name."""
    for variables in not_for_stages(os.environ).values():  # accelerate would take this process for a rank
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
    place = {"logging_dir": str(folder)} if kind.requires_logging_directory else {}
    named = {"mlflow": "run_name", "clearml": "task_name", "swanlab": "experiment_name", "trackio": "name"}
    title = {named[name]: id} if name in named else {"dir": id} if name == "dvclive" else {}
    own = {"tensorboard": f"{id}/{time.strftime('%Y%m%dT%H%M%S')}", "aim": id}.get(name, run["project"])
    tracker = kind(own, **place, **title)
    tracker.start()
    plain = (bool, int, float, str)
    tracker.store_init_configuration({k: v if isinstance(v, plain) else str(v) for k, v in run["config"].items()})
    steps = iter(range(sys.maxsize))
    return lambda figures: tracker.log(figures, step=next(steps)), lambda code: tracker.finish()


def main() -> int:
    """Give one tracker the figures of the file: both are named on the command line."""
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
