"""Classification of failures: the evidence on an ended job mapped to one kind; a pure function.

The stage's error record comes first (it separates CUDA's memory from a bug, both FAILED to Slurm), then its runner's
record, Slurm's state and exit code, the measured memory, and last the lines of the log. Slurm's verdict on memory, time
and cancellation outweighs a record of success.

    kind             evidence                                                             healing
    host_oom         OUT_OF_MEMORY; 0:9, 0:125 or 137 near the limit, or log lines        more memory
    cuda_oom         the stage's torch.OutOfMemoryError                                   smaller micro-batches
    interrupted      exit code 75: the stage was told to stop and saved a checkpoint      on from the checkpoint
    timeout          TIMEOUT, DEADLINE: Slurm ended it at its limit                       on from the checkpoint
    preempted        PREEMPTED                                                            again
    node_fail        NODE_FAIL, BOOT_FAIL                                                 again, on another node
    machine          a GPU, its driver or its links: ECC, Xid, NCCL (error or log)        on another node; remembered
    file_system      a file system that went on failing: stale handle, no answer          once, on another node
    installation     no Python, no module, no library: exit code 126 or 127, the log      once, on another node
    stalled          ended by its watchdog: its own pace had stopped                      again
    killed           SIGKILL that nothing explains                                        again
    lease_conflict   exit code 6: another process was making the same artifact            again
    bug, usage, input, empty, environment, no_log, unknown                                nothing: downstream waits
    cancelled        CANCELLED by somebody                                                nothing: it was meant
    dependency       cancelled before it began, by Slurm itself                           comes with its parent
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from r2v.errors import (
    BY_EXIT_CODE,
    CUDA_OOM,
    HOST_OOM,
    MACHINE_FAULT,
    NOT_INSTALLED,
    FailureKind,
    R2VError,
    kind_named,
)
from r2v.slurm.client.sacct import SacctRow, is_alive, memory

NEAR_LIMIT = 0.9
"""Share of its memory limit above which a killed job counts as out of memory: sampling misses the last allocation."""

_RESUME = "{resume}"
REMEDIES: dict[FailureKind, str] = {
    "host_oom": f"raise --mem in the header that sizes it, then: {_RESUME}",
    "cuda_oom": f"{_RESUME} --overrides training.batch_size=1 policy.load_in_4bit=true "
    "(or a smaller policy.max_seq_len)",
    "interrupted": f"raise --time in its script's header, then: {_RESUME}",
    "timeout": f"raise --time in its script's header, then: {_RESUME}",
    "machine": f"have the node looked at (nvidia-smi, the kernel's log), then: {_RESUME}",
    "file_system": f"see to the disk that the line names, then: {_RESUME}",
    "installation": f"mend .venv, or what scripts/slurm/env.sh loads; then: {_RESUME}",
    "stalled": f"look at the log's end, then: {_RESUME}",
    "preempted": _RESUME,
    "node_fail": _RESUME,
    "killed": f"look at the log's end, then: {_RESUME}",
    "lease_conflict": f"end the other process or wait for it, then: {_RESUME}",
    "bug": f"mend the code, then: {_RESUME}",
    "usage": f"{_RESUME} --overrides KEY=VALUE",
    "input": f"make the input that the line names again, then: {_RESUME}",
    "empty": f"{_RESUME} --overrides KEY=VALUE",
    "environment": f"mend what the line names (disk, provider, environment), then: {_RESUME}",
    "cancelled": _RESUME,
    "dependency": "its parent first; it comes with that",
    "no_log": f"make logs/ and write access to it on the nodes, then: {_RESUME}",
    "unknown": f"look at the log, then: {_RESUME}",
}
"""The remedy of each kind once healing has stopped; `{resume}` stands for the command that resumes the chain."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence on the last start of a job: its own records, `scontrol show job`, accounting, the end of its log.

    A job that heals itself has only its records, so the nodes, partition and memory that it recorded at its start
    replace Slurm's: both healing paths decide the same."""

    start: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    row: SacctRow | None = None
    scontrol: dict[str, str] = field(default_factory=dict)
    log: str = ""
    started: bool = True
    """True if the job ever ran."""

    @property
    def state(self) -> str:
        """Slurm's state of the job: the controller's if it has one, since accounting lags behind."""
        return self.scontrol.get("JobState") or (self.row.state if self.row else "")

    @property
    def code(self) -> tuple[int, int]:
        """Exit code and signal by Slurm, or else by the runner's record."""
        if self.row is not None and (self.row.exit_code or self.row.signal):
            return self.row.exit_code, self.row.signal
        code, _, number = self.scontrol.get("ExitCode", "0:0").partition(":")
        if (int(code), int(number)) != (0, 0) or self.exit is None:
            return int(code), int(number)
        return int(self.exit.get("rc") or 0), int(self.exit.get("signal") or 0)

    @property
    def measured(self) -> tuple[int | None, int | None]:
        """Bytes of memory: the peak, and the request."""
        sizes = (self.row.max_rss if self.row else None, (self.exit or {}).get("peak_rss_bytes"))
        by_slurm = (self.row.requested if self.row else None) or memory(self.scontrol.get("MinMemoryNode", ""))
        return max((size for size in sizes if size), default=None), by_slurm or self._granted.get("mem_bytes")

    @property
    def nodes(self) -> str:
        """The nodes of the job's last start, as a Slurm node list; "" if unknown."""
        listed = self.scontrol.get("NodeList", "")
        by_slurm = (self.row.nodes if self.row else "") or ("" if listed == "(null)" else listed)
        return by_slurm or str(self._granted.get("nodes") or "")

    @property
    def partition(self) -> str:
        """The job's partition, or list of partitions; "" if unknown."""
        return self.scontrol.get("Partition") or str(self._granted.get("partition") or "")

    @property
    def _granted(self) -> dict[str, Any]:
        granted = (self.start or {}).get("resources")
        return granted if isinstance(granted, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A kind of failure, and the line that explains it best."""

    kind: FailureKind
    line: str


def classify(evidence: Evidence) -> Failure | None:
    """Return the failure of a job; None if it has not failed, has not ended, or nothing is known yet."""
    if is_alive(evidence.state):
        return None
    if (failure := _by_state(evidence)) is not None:
        return failure
    if evidence.exit is not None:
        recorded = evidence.exit.get("kind")
        if not evidence.exit.get("rc") and not recorded:
            return None if evidence.state in ("", "COMPLETED") else _by_code(evidence)
        if recorded:
            line = str(evidence.exit.get("line") or last_line(evidence.log)) or _code_line(evidence)
            if recorded == "killed" and (match := MACHINE_FAULT.search(evidence.log)):
                return Failure(kind="machine", line=_line_around(evidence.log, match.start()))
            return Failure(kind=kind_named(recorded) or "unknown", line=line)
    if evidence.error is not None and (kind := kind_named(evidence.error.get("kind"))):
        return Failure(kind=kind, line=error_line(evidence.error))
    if evidence.state == "" and evidence.exit is None:
        return None
    if evidence.state == "COMPLETED" and not (evidence.row and evidence.row.derived):
        return None
    return _by_code(evidence)


def failure_kind(code: int, error: dict[str, Any] | None) -> FailureKind | None:
    """Return the kind of a stage's failure by its exit code (negative: a signal) and its error record; None if it
    succeeded, or was killed before it could write a record."""
    if error is not None and (kind := kind_named(error.get("kind"))):
        return kind
    if code in (0, -9, 137):
        return None
    return BY_EXIT_CODE.get(code, R2VError).kind


def near_limit(used: int | None, requested: int | None) -> bool:
    """True if the memory used is at least `NEAR_LIMIT` of the request."""
    return bool(used and requested and used >= NEAR_LIMIT * requested)


def error_line(error: dict[str, Any]) -> str:
    """Return an error record as one line; of a bug with type and place, which R2V's own errors do not need."""
    message = str(error.get("message") or error.get("type"))
    if kind_named(error.get("kind")) != R2VError.kind:
        return message
    return f"{error.get('type')}: {message}" + (f" ({error['where']})" if error.get("where") else "")


def last_line(log: str) -> str:
    """Return the last line that the stage itself wrote to a log, else the last of Slurm's and the runner's lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    stage_lines = [line for line in lines if not re.match(r"slurmstepd|srun|submitit|r2v job", line)]
    return (stage_lines or lines or [""])[-1][:300]


def _by_state(evidence: Evidence) -> Failure | None:
    """Return the failure that Slurm's state alone decides; None for other states."""
    state = evidence.state
    if state == "OUT_OF_MEMORY":
        return Failure(kind="host_oom", line=f"Slurm: OUT_OF_MEMORY{_memory_used(evidence)}")
    if state == "CANCELLED":
        by = evidence.row.by if evidence.row else None
        by_slurm = evidence.scontrol.get("Reason") == "DependencyNeverSatisfied" if evidence.scontrol else by is None
        if by_slurm and not evidence.started:
            return Failure(kind="dependency", line="Slurm cancelled it, since what it waits for has failed")
        return Failure(kind="cancelled", line="cancelled" + (f" by user {by}" if by else ""))
    if state in ("TIMEOUT", "DEADLINE"):
        limit = evidence.scontrol.get("TimeLimit", "")
        return Failure(kind="timeout", line=f"Slurm: {state}" + (f" after {limit}" if limit else ""))
    if state == "PREEMPTED":
        return Failure(kind="preempted", line="Slurm: PREEMPTED")
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return Failure(kind="node_fail", line=f"Slurm: {state} on {evidence.nodes or 'its node'}")
    return None


def _by_code(evidence: Evidence) -> Failure:
    """Return the failure by exit code, memory and the lines of the log."""
    (code, number), at_limit = evidence.code, near_limit(*evidence.measured)
    if evidence.exit is None and code in (1, 126, 127) and (match := NOT_INSTALLED.search(evidence.log)):
        return Failure(kind="installation", line=_line_around(evidence.log, match.start()))
    if match := CUDA_OOM.search(evidence.log):  # before HOST_OOM, which matches "out of memory" of any kind
        return Failure(kind="cuda_oom", line=_line_around(evidence.log, match.start()))
    if match := MACHINE_FAULT.search(evidence.log):
        return Failure(kind="machine", line=_line_around(evidence.log, match.start()))
    if number in (9, 125) or code in (9, 137):
        if at_limit or HOST_OOM.search(evidence.log):
            return Failure(kind="host_oom", line=f"killed at its memory limit{_memory_used(evidence)}")
        return Failure(kind="killed", line=f"killed by signal 9, nothing says why{_memory_used(evidence)}")
    if (code, number) == (0, 53):
        return Failure(kind="no_log", line="Slurm could not open its log file (0:53), so there is no output")
    if code in BY_EXIT_CODE:
        kind = BY_EXIT_CODE[code]
        return Failure(kind=kind.kind, line=last_line(evidence.log) or f"ended by exit code {code}: {kind.meaning}")
    if at_limit and HOST_OOM.search(evidence.log):
        return Failure(kind="host_oom", line=f"ended at its memory limit{_memory_used(evidence)}")
    failed = code or number or (evidence.row and evidence.row.derived)
    line = last_line(evidence.log) or _code_line(evidence)
    return Failure(kind="bug" if failed else "unknown", line=line)


def _code_line(evidence: Evidence) -> str:
    return "ended by exit code {}, signal {}".format(*evidence.code)


def _memory_used(evidence: Evidence) -> str:
    used, requested = evidence.measured
    if not used:
        match = HOST_OOM.search(evidence.log)
        return f": {_line_around(evidence.log, match.start())}" if match else ""
    return f": {used / 2**20:.0f} MB used" + (f", {requested / 2**20:.0f} MB asked for" if requested else "")


def _line_around(text: str, position: int) -> str:
    return text[text.rfind("\n", 0, position) + 1 :].splitlines()[0].strip()[:300]
