"""Slurm's commands: run with a time limit and retries with back-off, in the environment of `client.variables`.

    call(["squeue", "--me"])                 # its output; retried with growing pauses while Slurm does not answer
    once(["sbatch", "--parsable", ...])      # one try: without an answer it may have been carried out all the same

A busy controller sometimes answers with a socket error, and a restarting one not at all: neither is a refusal.
Idempotent commands (queries, scancel, scontrol update) are retried for `patience()` seconds; a submission is searched
for by its comment first (`r2v.slurm.client.client.sbatch`).
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
"""Seconds one command may take: a restarting controller answers late."""

NO_SLURM = (
    "no Slurm here: its commands are not on PATH; run this on a login node, or without Slurm: r2v run_all ... --here"
)

PATIENCE_VARIABLE = "R2V_SLURM_PATIENCE"
"""Seconds for which an unanswered command is retried."""
_INTERACTIVE_PATIENCE, _JOB_PATIENCE = 15.0, 120.0
"""Defaults of the same: a person waits at a prompt, a job can outlast a restart of the controller."""
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between tries, the last one repeated: a short hiccup costs little, an outage few calls."""

_NO_CONTROLLER = re.compile("Unable to contact slurm controller|Connection refused|establish a configuration source")
"""Errors of commands that reached no controller, or lack a configuration that names one."""
_UNCONFIGURED = "establish a configuration source"
_PASSES = re.compile(
    "Unable to contact slurm|Connection (refused|reset|timed out|closed)|Socket timed out|Broken pipe"
    "|[Zz]ero [Bb]ytes were transmitted|[Mm]essage (send|receive) failure|[Cc]ommunication connection failure"
    "|temporarily unav|temporarily unable|[Uu]nexpected message|controller in standby|in a reconfig|Job update pending"
    "|Transport endpoint|Protocol authentication error|slurm_persist_conn|[Uu]nspecified error|No route to host"
)
"""Errors of a controller that is busy, restarting or unreachable at the moment."""


class NoSlurm(EnvironmentFault):
    """Slurm's commands are missing, or its controller does not answer."""


class NoAnswer(NoSlurm):
    """A command got no answer: it may have been carried out or not."""


class SlurmRefused(EnvironmentFault):
    """Slurm answered, and refused the request."""


class Terminal(Protocol):
    """The runner of Slurm's commands and its clock: this machine, or a simulated cluster."""

    def run(
        self, command: Sequence[str], stdin: str | None, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises FileNotFoundError, subprocess.TimeoutExpired."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""


class ThisMachine:
    """The real Terminal: commands on PATH."""

    def run(
        self, command: Sequence[str], stdin: str | None, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command from PATH, for at most `COMMAND_TIMEOUT` seconds."""
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
        """Wait."""
        time.sleep(seconds)

    def monotonic(self) -> float:
        """Seconds of this machine's monotonic clock."""
        return time.monotonic()


_TERMINAL: ContextVar[Terminal] = ContextVar("terminal", default=ThisMachine())  # noqa: B039


def terminal() -> Terminal:
    """Return the current terminal."""
    return _TERMINAL.get()


@contextmanager
def through(other: Terminal) -> Iterator[None]:
    """Send every command and all waiting within the block to this terminal."""
    token = _TERMINAL.set(other)
    try:
        yield
    finally:
        _TERMINAL.reset(token)


def patience() -> float:
    """Return the seconds for which an unanswered command is retried: $R2V_SLURM_PATIENCE, or else 120 inside a job and
    15 outside. Raises UsageError if the variable is no number."""
    text = os.environ.get(PATIENCE_VARIABLE)
    if text is None:
        return _JOB_PATIENCE if os.environ.get("SLURM_JOB_ID") else _INTERACTIVE_PATIENCE
    if not re.fullmatch(r"\d{1,5}(\.\d+)?", text):
        raise UsageError(f"{PATIENCE_VARIABLE}={text}: must be seconds, 0 or more; for instance {PATIENCE_VARIABLE}=60")
    return float(text)


def pauses(limit: float | None = None) -> Iterator[float]:
    """Sleep through the pauses between tries, yielding each, for at most `limit` (default: `patience()`) seconds."""
    limit = patience() if limit is None else limit
    begun, tried = terminal().monotonic(), 0
    while True:
        # Jitter of a quarter either way, by process: jobs that were refused together must not retry together.
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
    """Return the login node through which a job calls Slurm if compute nodes may not; "" to call it directly, also if
    the site profile was damaged since."""
    if not os.environ.get("SLURM_JOB_ID"):
        return ""
    try:
        return project_profile().submit_host
    except InputError as error:
        logger.warning("site profile unreadable, calling Slurm from this node: error=%s", error)
        return ""


def _through(command: Sequence[str]) -> Sequence[str]:
    """Return a command wrapped in ssh if a login node has to run it."""
    if not (host := _submit_host()):
        return command
    return ["ssh", "-o", "BatchMode=yes", host, f"cd {shlex.quote(str(Path.cwd()))} && {on_login_node(command)}"]


def require() -> None:
    """Raise NoSlurm if this machine has no Slurm."""
    if not present():
        raise NoSlurm(NO_SLURM)


_ASKS_ONE = ("squeue", "sacct", "scontrol", "scancel", "sinfo")
"""Commands that need -M to reach another cluster. A submission names its cluster in its header."""


def other_cluster(root: Path = Path()) -> str:
    """Return the cluster of this checkout's jobs; "" for this machine's. The user's shell names it, else the last
    submitted chain, else a header: headers may have been edited since the jobs were submitted."""
    if named := os.environ.get("SBATCH_CLUSTERS") or os.environ.get("SLURM_CLUSTERS"):
        return named
    submitted = chains.last_cluster(root)
    return headers.named_cluster(root) if submitted is None else submitted


def run(command: Sequence[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return it, failed or not. Raises NoSlurm if missing, NoAnswer after a timeout."""
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
    """Return a query's result, failed or not; retried for `patience()` seconds while Slurm does not answer."""
    waiting = pauses()
    while True:
        done = run(command, stdin)
        passes = done.returncode and _PASSES.search(done.stderr)
        if not passes or next(waiting, None) is None:
            return done


def once(command: Sequence[str], stdin: str | None = None) -> str:
    """Return a command's output after one try. Raises SlurmRefused, NoAnswer, or NoSlurm without a configured Slurm."""
    done = run(command, stdin)
    if done.returncode == 0:
        return done.stdout
    line = one_line(done.stderr) or f"exit code {done.returncode}"
    if _NO_CONTROLLER.search(line):
        kind = NoSlurm if _UNCONFIGURED in line else NoAnswer
        if command[0].startswith("sacct"):  # accounting alone is down: a login node or --here would not help
            raise kind(f"{command[0]}: {line}")
        raise kind(
            f"{command[0]}: no Slurm controller answers here ({line}); run this on a login node, or "
            "without Slurm: r2v run_all ... --here"
        )
    if _PASSES.search(line):
        raise NoAnswer(f"{command[0]}: {line}")
    raise SlurmRefused(f"{command[0]}: {line}")


def call(command: Sequence[str], stdin: str | None = None, *, limit: float | None = None) -> str:
    """Return an idempotent command's output, retried for `limit` (default: `patience()`) seconds. Raises as `once`."""
    waiting = pauses(limit)
    while True:
        try:
            return once(command, stdin)
        except NoAnswer:
            if next(waiting, None) is None:
                raise


def one_line(text: str) -> str:
    """Return Slurm's message as one line without its prefixes."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line).strip() for line in text.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line))
