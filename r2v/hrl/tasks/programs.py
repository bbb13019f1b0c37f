"""Answers that are programs: whether the code that an answer says passes the problem's tests, judged in a sandbox.

The code runs alone; the tests run in a process that it cannot reach, and compare plain values (`r2v.sandbox.verdict`).
"""

from __future__ import annotations

import re

from r2v.errors import InputError
from r2v.hrl.tasks.problems import Problem
from r2v.sandbox.limits import Limits
from r2v.sandbox.verdict import passes

LIMITS = Limits()
"""What an answer's program may use, and its tests as well."""
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def program(problem: Problem, answer: str, *, unsafe: bool = False) -> float:
    """1 where the answer's code (the last fenced block, or all of it) passes the problem's tests; 0 where it raised,
    was cut off, or left before the tests were through.

    Raises EnvironmentFault where there is no sandbox (and not `unsafe`), and InputError for tests that cannot be
    judged.
    """
    blocks = _BLOCK.findall(answer)
    try:
        return float(passes(blocks[-1] if blocks else answer, problem.answer, limits=LIMITS, unsafe=unsafe))
    except InputError as error:
        raise InputError(f"problem {problem.id}: {error}") from None
