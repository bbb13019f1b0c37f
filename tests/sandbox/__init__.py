"""Shared parts of the sandbox tests: skip marks for a machine without one, and a program run inside it."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.sandbox.bubblewrap import python
from r2v.sandbox.command import CommandResult, run
from r2v.sandbox.limits import Limits
from r2v.sandbox.process import lacking

sandboxed = pytest.mark.skipif(bool(lacking()), reason=f"no sandbox: {lacking()}")
"""Mark of tests of the walls: they run wherever walls can be built."""
MODES = [pytest.param(False, marks=sandboxed, id="sandboxed"), pytest.param(True, id="unsafe")]


def inside(code: str, *, wanted: tuple[str, ...] = (), **limits: Any) -> CommandResult:
    """Return the result of a Python program behind walls. Its time is ample unless a test limits it: a busy machine is
    no wall."""
    command = [python(), "-I", "-S", "program"]
    most = Limits(**{"wall_seconds": 120.0, "cpu_seconds": 30, **limits})
    return run(command, files={"program": code.encode()}, wanted=wanted, limits=most)
