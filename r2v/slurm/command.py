"""Running Slurm's commands: with a time limit, in an environment of our own, their failures as two exceptions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from r2v.errors import EnvironmentFault

COMMAND_TIMEOUT = 60.0
"""Seconds one command may take: a controller that restarts answers late."""

NO_SLURM = (
    "no Slurm here: its commands are not on PATH; run this on a login node, or without Slurm: r2v run_all ... --here"
)

_NO_CONTROLLER = re.compile("Unable to contact slurm controller|Connection refused|establish a configuration source")
"""Errors of commands that found no controller, or no configuration that names one."""


class NoSlurm(EnvironmentFault):
    """Slurm's commands are not here, or its controller does not answer."""


class SlurmRefused(EnvironmentFault):
    """Slurm answered, and refused the request."""


def present() -> bool:
    """Whether Slurm's commands are on PATH."""
    return shutil.which("sbatch") is not None


def require() -> None:
    """Raises NoSlurm where this machine has no Slurm."""
    if not present():
        raise NoSlurm(NO_SLURM)


@contextmanager
def outside() -> Iterator[None]:
    """Within the block this process's environment is that of a login shell: what Slurm set for the job we are in
    (SLURM_MEM_PER_CPU, SLURM_EXPORT_ENV, ...) would bend the jobs we submit. The headers alone say what they ask."""
    kept = dict(os.environ)
    os.environ.clear()
    os.environ.update(_environment(kept))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def _environment(values: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in values.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SUBMITIT_"))
    }


def run(command: Sequence[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is. Raises NoSlurm where it is missing or gives no answer in time."""
    environment = {**_environment(dict(os.environ)), "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            env=environment,
            errors="replace",
        )
    except FileNotFoundError:
        raise NoSlurm(NO_SLURM) from None
    except subprocess.TimeoutExpired:
        raise NoSlurm(
            f"{command[0]} gave no answer in {COMMAND_TIMEOUT:.0f} s; is the cluster's controller down? "
            "Try `scontrol ping`"
        ) from None


def call(command: Sequence[str], stdin: str | None = None) -> str:
    """The output of a command. Raises SlurmRefused with its error where it fails, NoSlurm where none answers."""
    done = run(command, stdin)
    if done.returncode:
        line = one_line(done.stderr) or f"exit code {done.returncode}"
        if _NO_CONTROLLER.search(line) and command[0].startswith("sacct"):
            raise NoSlurm(f"{command[0]}: {line}")
        if _NO_CONTROLLER.search(line):
            raise NoSlurm(
                f"{command[0]}: no Slurm controller answers here ({line}); run this on a login node, or "
                "without Slurm: r2v run_all ... --here"
            )
        raise SlurmRefused(f"{command[0]}: {line}")
    return done.stdout


def one_line(text: str) -> str:
    """Slurm's message as one line, its own prefixes cut."""
    lines = [re.sub(r"^\w+: (error: |fatal: )?", "", line).strip() for line in text.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line))
