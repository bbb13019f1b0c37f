"""Why a job failed, told from all that is known of it: one pure function, most trustworthy witness first.

The stage itself knows best (its error record tells CUDA's memory from a bug, where Slurm says FAILED for both), its
runner next, then Slurm's state and exit code, the memory it measured, and last the words in the log. What Slurm says
of memory, time and cancellation outweighs a stage that believed itself done.

    kind         evidence                                                             what healing does
    host_oom     OUT_OF_MEMORY; 0:9, 0:125 or 137 near the limit, or with the words   more memory
    cuda_oom     the stage's torch.OutOfMemoryError                                   smaller micro-batches
    timeout      TIMEOUT, or exit code 75                                             on from the checkpoint
    preempted    PREEMPTED                                                            again
    node_fail    NODE_FAIL, BOOT_FAIL                                                 again, on another node
    killed       SIGKILL, and nothing says who                                        again
    held         exit code 6: another process was making the same                     again
    code, config, data, empty, environment                                            nothing: downstream waits
    cancelled    CANCELLED by somebody                                                nothing: it was meant
    dependency   cancelled before it began, by Slurm itself                           comes with its parent
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from r2v.slurm.client import Row, memory

Kind = Literal[
    "host_oom",
    "cuda_oom",
    "timeout",
    "preempted",
    "node_fail",
    "killed",
    "held",
    "code",
    "config",
    "data",
    "empty",
    "environment",
    "cancelled",
    "dependency",
    "no_log",
    "unknown",
]

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
"""States of a job that has not ended."""

NEAR = 0.9
"""Share of its memory at which a job that was killed is held to have run out of it."""

OF_RECORD: dict[str, Kind] = {
    "cuda_oom": "cuda_oom",
    "host_oom": "host_oom",
    "usage": "config",
    "input": "data",
    "empty": "empty",
    "environment": "environment",
    "held": "held",
    "interrupted": "timeout",
    "killed": "killed",
    "bug": "code",
}
"""What a stage's error record calls it, and the class that makes."""

OF_CODE: dict[int, Kind] = {2: "config", 3: "data", 4: "empty", 5: "environment", 6: "held", 75: "timeout"}
"""The exit codes of r2v.errors."""

MEMORY_WORDS = re.compile(
    r"exceeded( job)? memory limit|oom[-_ ]kill|out of memory|OUT_OF_MEMORY|Exceeded step memory", re.IGNORECASE
)
CUDA_WORDS = re.compile(r"CUDA out of memory|CUDA error: out of memory|torch\.(cuda\.)?OutOfMemoryError")

REMEDIES: dict[Kind, str] = {
    "host_oom": "raise --mem in the script's header, then: r2v resume {name} --from {job}",
    "cuda_oom": "r2v resume {name} --from {job} --overrides training.batch_size=1 policy.load_in_4bit=true "
    "(or a smaller policy.max_seq_len)",
    "timeout": "raise --time in the script's header, then: r2v resume {name} --from {job}",
    "preempted": "r2v resume {name} --from {job}",
    "node_fail": "r2v resume {name} --from {job}",
    "killed": "look at the log's end, then: r2v resume {name} --from {job}",
    "held": "end the other process or wait for it, then: r2v resume {name} --from {job}",
    "code": "mend the code, then: r2v resume {name} --from {job}",
    "config": "r2v resume {name} --from {job} --overrides KEY=VALUE",
    "data": "make the input that the line names again, then: r2v resume {name} --from {job}",
    "empty": "r2v resume {name} --from {job} --overrides KEY=VALUE",
    "environment": "mend what the line names (disk, provider, environment), then: r2v resume {name} --from {job}",
    "cancelled": "r2v resume {name} --from {job}",
    "dependency": "its parent first; it comes with that",
    "no_log": "make logs/ and write access to it on the nodes, then: r2v resume {name} --from {job}",
    "unknown": "look at the log, then: r2v resume {name} --from {job}",
}
"""What to type where healing has stopped."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of one job's last life. `exit` and `error` are records of that life, `shown` is `scontrol
    show job`, `text` the end of its log."""

    exit: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    row: Row | None = None
    shown: dict[str, str] = field(default_factory=dict)
    text: str = ""
    started: bool = True
    """Whether the job ever ran."""

    @property
    def state(self) -> str:
        """Slurm's word for it; the controller's where it still has one, since accounting lags behind."""
        return self.shown.get("JobState") or (self.row.state if self.row else "")

    @property
    def code(self) -> tuple[int, int]:
        """Exit code and signal, as Slurm tells them; the runner's word where Slurm has none."""
        if self.row is not None and (self.row.exit_code or self.row.signal):
            return self.row.exit_code, self.row.signal
        code, _, number = self.shown.get("ExitCode", "0:0").partition(":")
        if (int(code), int(number)) != (0, 0) or self.exit is None:
            return int(code), int(number)
        return int(self.exit.get("rc") or 0), int(self.exit.get("signal") or 0)

    @property
    def measured(self) -> tuple[int | None, int | None]:
        """Bytes of memory used at most, and asked for."""
        used = [
            size for size in (self.row.max_rss if self.row else None, (self.exit or {}).get("peak_rss_bytes")) if size
        ]
        asked = (self.row.requested if self.row else None) or memory(self.shown.get("MinMemoryNode", ""))
        return max(used, default=None), asked


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A class of failure, and the line that tells it best."""

    kind: Kind
    line: str


def classify(told: Evidence) -> Failure | None:
    """The failure of a job; None where it has not failed, runs or waits, or nobody knows of it yet."""
    if told.state in ALIVE:
        return None
    if (failure := _by_state(told)) is not None:
        return failure
    if told.exit is not None:
        if not told.exit.get("rc") and not told.exit.get("kind"):
            return None if told.state in ("", "COMPLETED") else _by_code(told)
        if told.exit.get("kind"):
            return Failure(kind=told.exit["kind"], line=str(told.exit.get("line") or last_line(told.text)))
    if told.error is not None and told.error.get("kind") in OF_RECORD:
        return Failure(kind=OF_RECORD[told.error["kind"]], line=error_line(told.error))
    if told.state == "" and told.exit is None:
        return None
    if told.state == "COMPLETED" and not (told.row and told.row.derived):
        return None
    return _by_code(told)


def of_stage(code: int, error: dict[str, Any] | None) -> Kind | None:
    """The class of a stage's end by its exit code (negative: a signal) and its own error record; None where it
    ended well, or by a signal that it could not tell of."""
    if error is not None and error.get("kind") in OF_RECORD:
        return OF_RECORD[error["kind"]]
    if code in (0, -9, 137):
        return None
    return OF_CODE.get(code, "code")


def near_limit(used: int | None, asked: int | None) -> bool:
    """Whether that much memory is as good as all that was asked for."""
    return bool(used and asked and used >= NEAR * asked)


def error_line(error: dict[str, Any]) -> str:
    """An error record in one line: of a bug its type and place too, which our own errors do without."""
    said = str(error.get("message") or error.get("type"))
    if error.get("kind") != "bug":
        return said
    return f"{error.get('type')}: {said}" + (f" ({error['where']})" if error.get("where") else "")


def last_line(text: str) -> str:
    """The last line of a log that says something; Slurm's and the runner's own lines aside."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not re.match(r"slurmstepd|srun|submitit|r2v job", line)]
    return (telling or lines or [""])[-1][:300]


def _by_state(told: Evidence) -> Failure | None:
    """What Slurm's word for it decides by itself."""
    state = told.state
    if state == "OUT_OF_MEMORY":
        return Failure(kind="host_oom", line=f"Slurm: OUT_OF_MEMORY{_measure(told)}")
    if state == "CANCELLED":
        by = told.row.by if told.row else None
        itself = told.shown.get("Reason") == "DependencyNeverSatisfied" if told.shown else by is None
        if itself and not told.started:
            return Failure(kind="dependency", line="Slurm cancelled it, since what it waits for has failed")
        return Failure(kind="cancelled", line="cancelled" + (f" by user {by}" if by else ""))
    if state in ("TIMEOUT", "DEADLINE"):
        limit = told.shown.get("TimeLimit", "")
        return Failure(kind="timeout", line=f"Slurm: {state}" + (f" after {limit}" if limit else ""))
    if state == "PREEMPTED":
        return Failure(kind="preempted", line="Slurm: PREEMPTED")
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return Failure(kind="node_fail", line=f"Slurm: {state} on {nodes(told) or 'its node'}")
    return None


def nodes(told: Evidence) -> str:
    """Where the job last ran, as Slurm writes lists of nodes."""
    shown = told.shown.get("NodeList", "")
    return (told.row.nodes if told.row else "") or ("" if shown == "(null)" else shown)


def _by_code(told: Evidence) -> Failure:
    """What the exit code, the memory and the words of the log leave to believe."""
    (code, number), hungry = told.code, near_limit(*told.measured)
    if found := CUDA_WORDS.search(told.text):
        return Failure(kind="cuda_oom", line=_line_around(told.text, found.start()))
    if number in (9, 125) or code in (9, 137):
        if hungry or MEMORY_WORDS.search(told.text):
            return Failure(kind="host_oom", line=f"killed at its memory limit{_measure(told)}")
        return Failure(kind="killed", line=f"killed by signal 9, nothing says why{_measure(told)}")
    if (code, number) == (0, 53):
        return Failure(kind="no_log", line="Slurm could not open its log file (0:53), so there is no output")
    if code in OF_CODE:
        return Failure(kind=OF_CODE[code], line=last_line(told.text))
    if hungry and MEMORY_WORDS.search(told.text):
        return Failure(kind="host_oom", line=f"ended at its memory limit{_measure(told)}")
    ended = f"ended by exit code {code}, signal {number}"
    return Failure(
        kind="code" if code or number or (told.row and told.row.derived) else "unknown",
        line=last_line(told.text) or ended,
    )


def _measure(told: Evidence) -> str:
    used, asked = told.measured
    if not used:
        said = MEMORY_WORDS.search(told.text)
        return f": {_line_around(told.text, said.start())}" if said else ""
    return f": {used / 2**20:.0f} MB used" + (f", {asked / 2**20:.0f} MB asked for" if asked else "")


def _line_around(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 :].splitlines()[0].strip()[:300]
