"""The fake Slurm without a new interpreter for each command: some tests run a hundred.

A test enters `with through(FakeInProcess())`; for commands in forks (tests/warm) FAKE_INSIDE stands first on
PYTHONPATH.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from types import CodeType

from r2v.slurm.client.command import ThisMachine

FAKE = Path(__file__).parent / "fake"
FAKE_INSIDE = Path(__file__).parent / "fake_inside"


class FakeInProcess(ThisMachine):
    """This machine, except that a fake command on PATH runs inside this process."""

    def run(
        self, command: Sequence[str], stdin: str | None, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        path = shutil.which(command[0], path=environment["PATH"])
        on_a_node = "FAKE_NODE" in os.environ  # FAKE_NODE: a node from which this machine may reach Slurm through ssh
        if path is None or Path(path).resolve() != FAKE / "slurm" or on_a_node:
            return super().run(command, stdin, environment)
        before, output, errors = (sys.argv, sys.stdin, os.environ), io.StringIO(), io.StringIO()
        code: object = 0
        try:
            sys.argv, sys.stdin = [path, *command[1:]], io.StringIO(stdin or "")
            os.environ = dict(environment)  # type: ignore[assignment]  # noqa: B003
            with redirect_stdout(output), redirect_stderr(errors):
                exec(program(), {"__name__": "__main__", "__file__": path})
        except SystemExit as end:
            code = end.code
        finally:
            sys.argv, sys.stdin, os.environ = before
        if isinstance(code, str):
            errors.write(f"{code}\n")
        return subprocess.CompletedProcess(list(command), int(bool(code)), output.getvalue(), errors.getvalue())


@cache
def program() -> CodeType:
    """Return the compiled program of the fake commands."""
    return compile((FAKE / "slurm").read_text(), FAKE / "slurm", "exec")
