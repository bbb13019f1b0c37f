"""A simulated Slurm behind R2V's own interface (`client.command.Terminal`): jobs, dependencies, accounting, and faults.

    slurm = SimulatedSlurm(faults=Faults(seed=7))
    with through(slurm):
        client.sbatch(...)

Time passes in sleeps and calls alone. The work of a job is not simulated: the test takes `slurm.begun`, the jobs that
have started, and ends each with `finish`. States follow a real one, whose traces it replays (traces.py): a dependency
that cannot be met waits for ever, one on a forgotten job is met, a waiting job keeps its id when it is pointed
elsewhere.

Faults, drawn by seed for each call: "error" (not carried out, a socket error), "lost" (carried out, a socket error),
"hang" (a minute without an answer; carried out or not), "late" (a socket error now, carried out seconds later), "twice"
(carried out twice), "full" (a submission refused at the limit on jobs), "killed" (the caller dies).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from r2v.randomness import generator

FAULTS = ("error", "lost", "hang", "late", "twice", "full", "killed")
MIN_JOB_AGE = 300.0
REQUEUE_WAIT = 5.0
"""Seconds that a requeued job waits."""
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")
_TIMED_OUT = "error: Socket timed out on send/recv operation"
_FULL = "error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)"


class Killed(BaseException):
    """The calling process has been killed."""


@dataclass(kw_only=True)
class SimulatedJob:
    """A simulated job: its options, dependency, state and times."""

    id: str
    options: dict[str, str]
    dependency: str
    state: str = "PENDING"
    reason: str = "None"
    code: str = "0:0"
    submitted: float = 0.0
    started: float | None = None
    ended: float | None = None
    begin: float = 0.0
    """Time before which it does not start."""

    @property
    def kills(self) -> bool:
        """True if Slurm ends the job when its dependency cannot be met."""
        return self.options.get("kill-on-invalid-dep") == "yes"


@dataclass(kw_only=True)
class Faults:
    """The calls that fail: a share of them, drawn by seed and call, or those listed by their number."""

    seed: int = 0
    share: float = 0.0
    listed: dict[int, str] = field(default_factory=dict)
    kinds: Sequence[str] = FAULTS
    silent: str = ""
    """A program whose calls are never answered."""
    injected: dict[tuple[str, str], int] = field(default_factory=dict)
    calls: int = 0

    def draw(self, program: str) -> str:
        """Return the fault of the next call; "" for none."""
        self.calls += 1
        fault = self.listed.get(self.calls, "error" if program == self.silent else "")
        random = generator(self.seed, "fault", self.calls)
        if not fault and random.random() < self.share:
            fault = random.choice(self.kinds)
        if fault == "full" and program != "sbatch":
            fault = "error"
        if fault:
            self.injected[program, fault] = self.injected.get((program, fault), 0) + 1
        return fault


@dataclass(kw_only=True)
class SimulatedSlurm:
    """The simulated cluster, and the terminal that reaches it."""

    faults: Faults = field(default_factory=Faults)
    now: float = 0.0
    jobs: dict[str, SimulatedJob] = field(default_factory=dict)
    begun: list[SimulatedJob] = field(default_factory=list)
    later: list[tuple[float, Callable[[], str]]] = field(default_factory=list)
    folder: str = ""
    settle: float = 0.0
    """Seconds from an end until dependent jobs and accounting know of it; squeue and scontrol know at once."""

    def monotonic(self) -> float:
        """Return the simulated time, in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self._advance()

    def run(
        self, command: Sequence[str], stdin: str | None, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Carry out a command, with the fault drawn for it."""
        self.sleep(0.05)
        program, fault = command[0], self.faults.draw(command[0])
        act = lambda: self._carry_out(list(command), stdin or "")  # noqa: E731
        output = ""
        if fault in ("", "lost", "twice") or (fault in ("hang", "killed") and self.faults.calls % 2):
            output = act()
        if fault == "twice":
            output = act()
        if fault == "late":
            self.later.append((self.now + 1 + self.faults.calls % 30, act))
        self._advance()
        if fault == "killed":
            raise Killed
        if fault == "hang":
            self.sleep(60.0)
            raise subprocess.TimeoutExpired(list(command), 60)
        if fault in ("error", "lost", "late", "full"):
            words = _FULL if fault == "full" else _TIMED_OUT
            return subprocess.CompletedProcess(list(command), 1, "", f"{program}: {words}")
        if output.startswith("!"):
            return subprocess.CompletedProcess(list(command), 1, "", f"{program}: error: {output[1:]}")
        return subprocess.CompletedProcess(list(command), 0, output, "")

    @property
    def has_pending_events(self) -> bool:
        """True if a late call is still to be carried out, or a job's end is not yet known everywhere."""
        return bool(self.later) or any(
            job.ended is not None and not self._known_to_have_ended(job) for job in self.jobs.values()
        )

    def finish(self, job: SimulatedJob, state: str, code: str = "0:0") -> None:
        """End a running job."""
        if job.state == "RUNNING":
            job.state, job.code, job.ended, job.reason = state, code, self.now, "None"
            self._advance()

    def _advance(self) -> None:
        """Run the late calls that are due, and start or end pending jobs as their dependencies say."""
        for due, act in list(self.later):
            if due <= self.now:
                self.later.remove((due, act))
                act()
        moved = True
        while moved:
            moved = False
            for job in self.jobs.values():
                if job.state != "PENDING":
                    continue
                verdict = self._judged(job)
                job.reason = {"yes": "None", "no": "Dependency", "never": "DependencyNeverSatisfied"}[verdict]
                if verdict == "never" and job.kills:
                    job.state, job.ended, moved = "CANCELLED", self.now, True
                elif verdict == "yes" and job.begin > self.now:
                    job.reason = "BeginTime"
                elif verdict == "yes":
                    job.state, job.started, job.dependency, moved = "RUNNING", self.now, "", True
                    self.begun.append(job)

    def _judged(self, job: SimulatedJob) -> str:
        """Return "yes", "no" or "never": the job may start, must wait, or cannot start; drop the dependencies already
        met."""
        if "?" in job.dependency:  # any of them suffices
            told = {part: self._met(*part.split(":")) for part in job.dependency.split("?")}
            job.dependency = "?".join(part for part, verdict in told.items() if verdict != "never") or job.dependency
            return "yes" if "yes" in told.values() else "no" if "no" in told.values() else "never"
        verdicts = {part: self._met(*part.split(":")) for part in job.dependency.split(",") if part}
        if "never" in verdicts.values():
            return "never"
        job.dependency = ",".join(part for part, verdict in verdicts.items() if verdict == "no")
        return "no" if job.dependency else "yes"

    def _met(self, kind: str, id_: str) -> str:
        parent = self.jobs.get(id_)
        if parent is None or (parent.ended is not None and self.now - parent.ended > MIN_JOB_AGE):
            return "yes"  # a forgotten job counts as met, as in Slurm
        well = parent.state == "COMPLETED"
        if not self._known_to_have_ended(parent):
            return "no"
        return "never" if (kind == "afterok" and not well) or (kind == "afternotok" and well) else "yes"

    def _known_to_have_ended(self, job: SimulatedJob) -> bool:
        return job.state in _ENDED and (job.ended is None or self.now - job.ended >= self.settle)

    def _carry_out(self, command: list[str], stdin: str) -> str:
        program, words = command[0], command[1:]
        return {
            "sbatch": self._sbatch,
            "squeue": self._squeue,
            "sacct": self._sacct,
            "scontrol": self._scontrol,
            "scancel": self._scancel,
        }.get(program, lambda words, stdin: "")(words, stdin)

    def _sbatch(self, words: list[str], stdin: str) -> str:
        options = {}
        for line in [*re.findall(r"^#SBATCH (--\S+)", stdin, re.M), *words]:
            name, _, value = line.removeprefix("--").partition("=")
            options[name] = value.strip("'\"")
        if "test-only" in options:
            return ""
        id_ = str(len(self.jobs) + 1)
        options["script"] = stdin
        self.jobs[id_] = SimulatedJob(
            id=id_, options=options, dependency=_spread(options.get("dependency", "")), submitted=self.now
        )
        return f"{id_}\n"

    def _remembered(self) -> list[SimulatedJob]:
        return [job for job in self.jobs.values() if job.ended is None or self.now - job.ended < MIN_JOB_AGE]

    def _squeue(self, words: list[str], stdin: str) -> str:
        rows = self._remembered() if "--states=all" in words else [job for job in self._remembered() if not job.ended]
        form = words[words.index("-o") + 1].split("\x1f")
        return "".join("\x1f".join(self._field(job, letter) for letter in form) + "\n" for job in rows)

    def _field(self, job: SimulatedJob, letter: str) -> str:
        values = {"%i": job.id, "%T": job.state, "%r": job.reason, "%k": job.options.get("comment", "")}
        values |= {"%E": job.dependency or "(null)", "%Z": self.folder, "%j": job.options.get("job-name", "")}
        return values.get(letter, "N/A")

    def _sacct(self, words: list[str], stdin: str) -> str:
        names, ids = words[words.index("-o") + 1].split(","), words[words.index("-j") + 1].split(",")
        lines = []
        for job in (self.jobs[id_] for id_ in ids if id_ in self.jobs):
            state, code = (
                (job.state, job.code) if job.ended is None or self._known_to_have_ended(job) else ("RUNNING", "0:0")
            )
            values = {"JobID": job.id, "State": state, "ExitCode": code, "ElapsedRaw": "1", "NodeList": "g1"}
            lines.append("|".join(values.get(name, "") for name in names) + "\n")
        return "".join(lines)

    def _scontrol(self, words: list[str], stdin: str) -> str:
        if words[0] == "show":
            job = next((job for job in self._remembered() if job.id == words[-1]), None)
            if job is None:
                return "!Invalid job id specified"
            node = "g1" if job.started is not None else "(null)"
            where = f"NodeList={node} Partition=gpu MinMemoryNode=1G"
            return f"JobId={job.id} JobState={job.state} Reason={job.reason} ExitCode={job.code} {where}\n"
        if words[0] == "requeue":
            return self._requeue(words[1])
        changes = dict(word.split("=", 1) for word in words[1:])
        job = self.jobs.get(changes.pop("jobid", ""))
        if job is None or job.state != "PENDING":
            return "!Job is no longer pending execution"
        job.dependency = _spread(changes.get("dependency", job.dependency))
        job.options["comment"] = changes.get("comment", job.options.get("comment", ""))
        return ""

    def _requeue(self, id_: str) -> str:
        job = self.jobs.get(id_)
        if job is None or job.state != "RUNNING":
            return "!Invalid job id specified"
        job.state, job.started, job.begin = "PENDING", None, self.now + REQUEUE_WAIT
        return ""

    def _scancel(self, words: list[str], stdin: str) -> str:
        for job in (self.jobs[word] for word in words if word in self.jobs):
            if job.state in ("PENDING", "RUNNING"):
                job.state, job.ended = "CANCELLED", self.now
        return ""


def _spread(dependency: str) -> str:
    """Return `afterok:1:2` as squeue shows it: each job by itself."""
    if "?" in dependency:
        return dependency
    parts = (part.split(":") for part in dependency.split(",") if part)
    return ",".join(f"{kind}:{id_}" for kind, *ids in parts for id_ in ids)
