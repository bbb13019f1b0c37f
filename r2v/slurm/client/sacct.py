"""Accounting: the output of sacct as typed rows, one per start of a job, for any version of Slurm.

A requeued job has several rows under one id: sacct --duplicates prints all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ENDED = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "BOOT_FAIL",
    "PREEMPTED",
    "DEADLINE",
)
"""Final states of a job."""
ALIVE = (
    "PENDING",
    "RUNNING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "COMPLETING",
    "SUSPENDED",
    "CONFIGURING",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
)
"""States of a job that has not ended. One in neither list, such as REVOKED, counts as ended: no chain waits for it."""

FIELDS = (
    "JobID",
    "State",
    "ExitCode",
    "DerivedExitCode",
    "ElapsedRaw",
    "AllocTRES",
    "ReqMem",
    "MaxRSS",
    "NodeList",
)
"""The fields requested, all older than any Slurm in use."""


@dataclass(frozen=True, kw_only=True)
class SacctRow:
    """One start of a job (a requeued job has several), from sacct. Memory in bytes, elapsed in seconds."""

    id: str
    state: str
    by: str | None = None
    """The user id of the person who cancelled it."""
    exit_code: int = 0
    signal: int = 0
    derived: int = 0
    """The highest exit code of its steps."""
    elapsed: int = 0
    gpus: int = 0
    cpus: int = 0
    requested: int | None = None
    max_rss: int | None = None
    nodes: str = ""

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of this start."""
        return self.gpus * self.elapsed / 3600

    @property
    def cpu_hours(self) -> float:
        """CPU-hours allocated to this start, used or idle."""
        return self.cpus * self.elapsed / 3600


def read_accounting(text: str, fields: Sequence[str] = FIELDS) -> dict[str, list[SacctRow]]:
    """Parse the text of `sacct -P` by job, oldest start first; a start's memory is the highest of its steps."""
    jobs: dict[str, list[dict[str, str]]] = {}
    for line in text.splitlines():
        values = dict(zip(fields, line.split("|"), strict=False))
        id_, dot, _ = values.get("JobID", "").partition(".")
        if not id_ or "State" not in values:
            continue
        if not dot:
            jobs.setdefault(id_, []).append({**values, "MaxRSS": values.get("MaxRSS", "")})
        elif id_ in jobs:
            # Steps (.batch, .0) follow the line of the start they belong to.
            start = jobs[id_][-1]
            start["MaxRSS"] = max(start["MaxRSS"], values.get("MaxRSS", ""), key=lambda size: memory(size) or 0)
    return {id_: [_row(start) for start in starts] for id_, starts in jobs.items()}


def _row(values: dict[str, str]) -> SacctRow:
    state, _, by = values["State"].partition(" by ")
    code, number = _exit(values.get("ExitCode", ""))
    tres = dict(item.split("=", 1) for item in values.get("AllocTRES", "").split(",") if "=" in item)
    return SacctRow(
        id=values["JobID"],
        state=state_of(state),
        by=by.strip() or None,
        exit_code=code,
        signal=number,
        derived=_exit(values.get("DerivedExitCode", ""))[0],
        elapsed=int(values.get("ElapsedRaw") or 0),
        gpus=_gpus(tres),
        cpus=int(tres.get("cpu", 0)),
        requested=memory(values.get("ReqMem", "")),
        max_rss=memory(values.get("MaxRSS", "")),
        nodes=given(values.get("NodeList", "")),
    )


def _gpus(tres: dict[str, str]) -> int:
    """Return the generic GPU count, or the sum over types if the site records none."""
    typed = sum(int(count) for name, count in tres.items() if name.startswith("gres/gpu:"))
    return int(tres.get("gres/gpu", typed))


def state_of(word: str) -> str:
    """Return a state's full name: "CANCELLED by 7" is CANCELLED, "OUT_OF_ME+" is OUT_OF_MEMORY."""
    bare = word.split()[0] if word.split() else ""
    if bare.endswith("+"):
        return next((state for state in ENDED if state.startswith(bare[:-1])), bare[:-1])
    return bare


def is_alive(state: str) -> bool:
    """True if a job in this state has not ended; False for an empty state."""
    return state in ALIVE


def memory(text: str) -> int | None:
    """Return the bytes of Slurm's "200M", "161826K", "4Gn", "1.5G" (a bare number: MB, as in --mem); None for none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)[Bbcn]?", text.strip(), re.IGNORECASE)
    if match is None:
        return None
    power = "KMGTP".find((match[2] or "M").upper()) + 1
    return int(float(match[1]) * 1024**power)


def _exit(text: str) -> tuple[int, int]:
    code, _, number = text.partition(":")
    return (int(code) if code.isdigit() else 0, int(number) if number.isdigit() else 0)


def given(text: str) -> str:
    """Return a value, or "" for Slurm's placeholders of no value."""
    return "" if text in ("(null)", "N/A", "None", "Unknown", "None assigned") else text
