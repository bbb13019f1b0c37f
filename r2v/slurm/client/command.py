"""Running Slurm's commands: with a time limit, repeated with back-off, under the variables of `client.variables`.

    call(["squeue", "--me"])                 # its output; asked again, with growing pauses, while nobody answers
    once(["sbatch", "--parsable", ...])      # asked once: what is not answered may have been done all the same

A busy controller answers now and then with a socket error, and one that restarts not at all: neither is a refusal.
What may be said twice (a question, scancel, scontrol update) is said again for `patience()` seconds; what may not is
looked for by its comment (`r2v.slurm.client.client.sbatch`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from r2v.errors import EnvironmentFault, InputError, UsageError
from r2v.log import logger
from r2v.slurm.chain import chain as chains
from r2v.slurm.client.variables import of_program, on_login_node
from r2v.slurm.site import headers
from r2v.slurm.site.site_profile import project_profile

COMMAND_TIMEOUT = 60.0
"""Seconds one command may take: a controller that restarts answers late."""

NO_SLURM = (
    "no Slurm here: its commands are not on PATH; run this on a login node, or without Slurm: r2v run_all ... --here"
)

PATIENCE_VARIABLE = "R2V_SLURM_PATIENCE"
"""Seconds for which a command that nobody answers is repeated."""
_WAITS_AT_DOOR, _WAITS_IN_JOB = 15.0, 120.0
"""The same where nothing is set: a person waits less gladly than a job."""
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between one try and the next; the last of them from then on."""

_NO_CONTROLLER = re.compile("Unable to contact slurm controller|Connection refused|establish a configuration source")
"""Errors of commands that found no controller, or no configuration that names one."""
_UNCONFIGURED = "establish a configuration source"
_PASSES = re.compile(
    "Unable to contact slurm|Connection (refused|reset|timed out|closed)|Socket timed out|Broken pipe"
    "|[Zz]ero [Bb]ytes were transmitted|[Mm]essage (send|receive) failure|[Cc]ommunication connection failure"
    "|temporarily unav|temporarily unable|[Uu]nexpected message|controller in standby|in a reconfig|Job update pending"
    "|Transport endpoint|Protocol authentication error|slurm_persist_conn|[Uu]nspecified error|No route to host"
)
"""Errors of a controller that is busy, restarts or cannot be reached at this moment."""


class NoSlurm(EnvironmentFault):
    """Slurm's commands are not here, or its controller does not answer."""


class NoAnswer(NoSlurm):
    """A command got no answer: whether it was carried out is not known."""


class SlurmRefused(EnvironmentFault):
    """Slurm answered, and refused the request."""


class Terminal(Protocol):
    """The machine that runs Slurm's commands and keeps the time: this one, or a simulated cluster."""

    def run(
        self, command: Sequence[str], stdin: str | None, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises FileNotFoundError, subprocess.TimeoutExpired."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""


class ThisMachine:
    """The Terminal of every day: commands on PATH."""

    def run(
        self, command: Sequence[str], stdin: str | None, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of this process's PATH, for `COMMAND_TIMEOUT` seconds at most."""
        words = _through(command)
        return subprocess.run(
            words,
            executable=shutil.which(words[0]),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            env=dict(environment),
            errors="replace",
        )

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def monotonic(self) -> float:
        """Seconds since this machine began."""
        return time.monotonic()


_TERMINAL: ContextVar[Terminal] = ContextVar("terminal", default=ThisMachine())  # noqa: B039


def terminal() -> Terminal:
    """The terminal to which commands go now."""
    return _TERMINAL.get()


@contextmanager
def through(other: Terminal) -> Iterator[None]:
    """Within the block every command goes to this terminal, and all waiting is its own."""
    token = _TERMINAL.set(other)
    try:
        yield
    finally:
        _TERMINAL.reset(token)


def patience() -> float:
    """Seconds for which a command is repeated that nobody answers: $R2V_SLURM_PATIENCE, or else 120 inside a job and 15
    outside. Raises UsageError where that is no number."""
    text = os.environ.get(PATIENCE_VARIABLE)
    if text is None:
        return _WAITS_IN_JOB if os.environ.get("SLURM_JOB_ID") else _WAITS_AT_DOOR
    if not re.fullmatch(r"\d{1,5}(\.\d+)?", text):
        raise UsageError(f"{PATIENCE_VARIABLE}={text}: must be seconds, 0 or more; for instance {PATIENCE_VARIABLE}=60")
    return float(text)


def pauses(limit: float | None = None) -> Iterator[float]:
    """Waits out, one after the other, the pauses between tries; ends when `limit` (default: `patience()`) seconds have
    passed since the first. Tries of many jobs that were refused together do not come back together."""
    limit = patience() if limit is None else limit
    begun, tried = terminal().monotonic(), 0
    while True:
        spread = 0.75 + 0.5 * ((os.getpid() * 7919 + tried * 104729) % 997) / 997
        pause = _PAUSES[min(tried, len(_PAUSES) - 1)] * spread
        if terminal().monotonic() - begun + pause > limit:
            return
        terminal().sleep(pause)
        tried += 1
        yield pause


def present() -> bool:
    """True if Slurm's commands are on PATH, or a login node has them."""
    here = shutil.which("sbatch") is not None or not isinstance(terminal(), ThisMachine)
    return here or bool(_submit_host())


def _submit_host() -> str:
    """The login node through which a job speaks to Slurm, where its own node may not. A job whose site profile was
    broken meanwhile asks from its node."""
    if not os.environ.get("SLURM_JOB_ID"):
        return ""
    try:
        return project_profile().submit_host
    except InputError as error:
        logger.warning("%s; Slurm is asked from this node", error)
        return ""


def _through(command: Sequence[str]) -> Sequence[str]:
    """A command as it reaches Slurm from here."""
    if not (host := _submit_host()):
        return command
    return ["ssh", "-o", "BatchMode=yes", host, f"cd {shlex.quote(str(Path.cwd()))} && {on_login_node(command)}"]


def require() -> None:
    """Raises NoSlurm where this machine has no Slurm."""
    if not present():
        raise NoSlurm(NO_SLURM)


_ASKS_ONE = ("squeue", "sacct", "scontrol", "scancel", "sinfo")
"""Commands that speak to the cluster of this machine, where no other is named. A submission names its own."""


def other_cluster(root: Path = Path()) -> str:
    """The cluster that the jobs of this checkout go to; "" for this one. The user's shell says it, else the chain that
    was submitted last, and before there is one a header: once jobs are in the queue no script is read to find them."""
    if named := os.environ.get("SBATCH_CLUSTERS") or os.environ.get("SLURM_CLUSTERS"):
        return named
    submitted = chains.last_cluster(root)
    return headers.named_cluster(root) if submitted is None else submitted


def run(command: Sequence[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is. Raises NoSlurm where it is missing, NoAnswer where it gives no answer
    in time."""
    if command[0] in _ASKS_ONE and (cluster := other_cluster()):
        command = [command[0], "-M", cluster, *command[1:]]
    try:
        return terminal().run(command, stdin, of_program(command[0], os.environ))
    except FileNotFoundError:
        raise NoSlurm(NO_SLURM) from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(
            f"{command[0]} gave no answer in {COMMAND_TIMEOUT:.0f} s; is the cluster's controller down? "
            "Try `scontrol ping`"
        ) from None


def ask(command: Sequence[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A question's answer, whatever it is; asked again for `patience()` seconds while nobody answers."""
    waiting = pauses()
    while True:
        done = run(command, stdin)
        passes = done.returncode and _PASSES.search(done.stderr)
        if not passes or next(waiting, None) is None:
            return done


def once(command: Sequence[str], stdin: str | None = None) -> str:
    """The output of a command. Raises SlurmRefused with its error where it is refused, NoAnswer where nobody answers,
    NoSlurm where no Slurm is known here."""
    done = run(command, stdin)
    if done.returncode == 0:
        return done.stdout
    line = one_line(done.stderr) or f"exit code {done.returncode}"
    if _NO_CONTROLLER.search(line):
        kind = NoSlurm if _UNCONFIGURED in line else NoAnswer
        if command[0].startswith("sacct"):
            raise kind(f"{command[0]}: {line}")
        raise kind(
            f"{command[0]}: no Slurm controller answers here ({line}); run this on a login node, or "
            "without Slurm: r2v run_all ... --here"
        )
    if _PASSES.search(line):
        raise NoAnswer(f"{command[0]}: {line}")
    raise SlurmRefused(f"{command[0]}: {line}")


def call(command: Sequence[str], stdin: str | None = None, *, limit: float | None = None) -> str:
    """The output of a command that may be said twice; said again, for `limit` seconds (default: `patience()`), while
    nobody answers. Raises as `once` does."""
    waiting = pauses(limit)
    while True:
        try:
            return once(command, stdin)
        except NoAnswer:
            if next(waiting, None) is None:
                raise


def one_line(text: str) -> str:
    """Slurm's message as one line, its own prefixes cut."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line).strip() for line in text.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line))
