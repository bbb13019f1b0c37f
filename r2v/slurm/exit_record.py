"""The exit record, `exit.json`: how a stage ended, by its exit code, its own error record and the memory it used."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Any

from r2v.errors import FailureKind, Interrupted
from r2v.slurm import chain as chains
from r2v.slurm.healing.classify import error_line, failure_kind, near_limit
from r2v.slurm.job_environment import granted_memory, oom_kills
from r2v.slurm.stage_process import JobStart
from r2v.slurm.verify_outputs import missing_output


def exit_record(job_start: JobStart, code: int, error: dict[str, Any] | None, root: Path) -> dict[str, Any]:
    """The content of `exit.json`: how the stage ended, and the exit code that Slurm is given."""
    kind: FailureKind | None = failure_kind(code, error)
    line = error_line(error) if error else ""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL) or "signal 9" in line
    if code == 0:
        missing = missing_output(job_start.words, root)
        kind, line, code = ("bug", f"ended with 0, and yet {missing}", 1) if missing else (None, "", 0)
    elif job_start.stalled:
        kind, line = "stalled", job_start.stalled
    elif kind != "cuda_oom" and (oom_kills() > job_start.oom_kills or killed and near_limit(peak, granted_memory())):
        kind, line = "host_oom", f"killed at its memory limit: {peak >> 20} MB used by its largest process"
    elif killed:
        kind, line = "killed", line or "killed by signal 9, nothing says why"
    elif code < 0:
        line = line or f"killed by {signal.Signals(-code).name}"
    rc = Interrupted.exit_code if kind == Interrupted.kind else 128 - code if code < 0 else code
    return {
        "rc": rc,
        "signal": max(0, -code),
        "kind": kind,
        "line": line,
        "at": chains.now(),
        "restart": job_start.restart,
        "peak_rss_bytes": peak,
    }
