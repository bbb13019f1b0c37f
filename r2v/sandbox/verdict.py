"""Verdict on an answer's program by a problem's tests, from a process that the program cannot reach.

    passes("def f(x): return x * x", "assert f(2) == 4\\nassert f(3) == 9")     # True

The program runs in one sandbox, the tests in another. The two exchange calls and data (`r2v.sandbox.wire`), and the
tests compare plain values of their own. Whatever the program prints, raises, overrides or exits with, it can only fail.

Not supported are operators and comparisons on objects of the answer's own classes (attributes, methods, items, length
and text are), coroutines, and changes to anything but a call's arguments. Such an object answers a test for itself, so
only tests that compare plain values are safe.
"""

from __future__ import annotations

import os
import select
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from r2v.errors import EnvironmentFault, InputError
from r2v.sandbox.judging import ABSENT, PASSED, UNFIT, UP
from r2v.sandbox.limits import Limits
from r2v.sandbox.process import Orders, pipe, start, stop
from r2v.sandbox.slots import slot

_WIRE = ("r2v.sandbox.plain_values", "r2v.sandbox.wire")
_VERDICT = 1000
"""Longest verdict in bytes."""


def passes(code: str, tests: str, *, limits: Limits | None = None, unsafe: bool = False) -> bool:
    """True if the names defined by Python `code` pass the Python `tests`. Both have the same limits.

    Raises EnvironmentFault without a sandbox (unless `unsafe`) or if no process can be started, and InputError for
    tests that pass the answer a value that cannot be sent.
    """
    limits = limits or Limits()
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="r2v-"))) if unsafe else Path("/")
        errors = opened.enter_context(tempfile.TemporaryFile())
        (questions, ask), (replies, reply), (verdict, say) = (pipe(opened) for _ in range(3))
        judge = Orders(
            modules=(*_WIRE, "r2v.sandbox.judging"),
            data={"tests": tests, "verdict": say.fileno()},
            limits=limits,
            keep=(say.fileno(),),
            traceable=False,
            unsafe=unsafe,
            folder=folder,
        )
        answer = Orders(
            modules=(*_WIRE, "r2v.sandbox.answering"), data={"code": code}, limits=limits, unsafe=unsafe, folder=folder
        )
        opened.enter_context(slot())
        opened.callback(stop, start(judge, stdin=replies, stdout=ask, stderr=errors))
        opened.callback(stop, start(answer, stdin=questions, stdout=reply, stderr=errors))
        for ours in (questions, ask, replies, reply, say):
            ours.close()
        lines = _read(verdict.fileno(), limits.wall_seconds).split("\n")
        errors.seek(0)
        return _passed(lines, " ".join(errors.read(300).decode(errors="replace").split()))


def _read(descriptor: int, seconds: float) -> str:
    """Read a pipe until its end, _VERDICT bytes or `seconds`, and return the text."""
    got, end = b"", time.monotonic() + seconds
    while len(got) < _VERDICT and select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
        if not (chunk := os.read(descriptor, _VERDICT)):
            break
        got += chunk
    return got.decode(errors="replace")


def _passed(lines: list[str], errors: str) -> bool:
    verdict = lines[1] if len(lines) > 1 else ""
    if lines[0] != UP or verdict == ABSENT:
        raise EnvironmentFault(
            f"the sandbox's processes did not begin ({errors or 'no reason given'}); free memory or processes and run "
            "the same command again"
        )
    if verdict.startswith(UNFIT):
        raise InputError(f"its tests give the answer {verdict.removeprefix(UNFIT).strip()}; give it data, or functions")
    return verdict == PASSED
