"""Checkers: functions that score an answer to a problem in [0, 1]; 1 is right.

    checker_of("auto", problems)(problem, "... #### 72")     # 1.0

`numeric` compares numbers, 1/2 with 0.5 and 1,000 with 1000; `exact` compares words, ignoring case and spaces; `boxed`
compares what the last \\boxed{} says, or stands after ####, by its mathematical meaning, with math-verify
(`r2v.hrl.tasks.equivalence`); `program` runs the answer's code and the problem's own tests in two sandboxes.
`auto` chooses by the reference answers: boxes, else assertions, else numbers, else words. `package.module:function` is
a checker of one's own (docs/extending/checker.md).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Literal

from r2v.errors import InputError, R2VError, UsageError
from r2v.extensions import load_function
from r2v.hrl.tasks.equivalence import same
from r2v.hrl.tasks.problems import Problem, last_boxed
from r2v.log import logger
from r2v.sandbox.limits import Limits
from r2v.sandbox.process import lacking, require
from r2v.sandbox.verdict import passes

Checker = Callable[[Problem, str], float]
"""(problem, the answer's text) -> score in [0, 1]; 1 is right."""
CheckerName = Literal["numeric", "exact", "boxed", "program"]

LIMITS = Limits()
"""Limits of an answer's program, and of its tests."""
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?(?:\s*/\s*\d[\d,]*)?")
_ASSERTS = re.compile(r"^\s*assert\b", re.MULTILINE)
_SECTION = "hierarchical.problems"
_KEY = f"{_SECTION}.checker"
_CLOSE = 1e-6
_REMARK = re.compile(r"\([^()]*\)")


def kind_of(name: str, problems: Sequence[Problem]) -> str:
    """The checker's name, or path: that of `auto` by the problems' answers."""
    return infer_checker(problems) if name == "auto" else name


def checker_of(name: str, problems: Sequence[Problem] = (), *, unsafe: bool = False) -> Checker:
    """The checker of this name, or at this path `package.module:function`; `auto` is chosen by the problems' answers.
    `unsafe`: where there is no sandbox, programs run without one, and a line says so.

    Raises UsageError for an unknown name or a path that cannot be loaded, InputError for a reference answer that this
    checker can never score as right, and EnvironmentFault where programs are to run in a sandbox and there is none.
    """
    kind = kind_of(name, problems)
    checkers: dict[str, Checker] = {"numeric": numeric, "exact": exact, "boxed": boxed, "program": program}
    if kind not in checkers:
        return load_function(_KEY, name, ["auto", *checkers], ("problem", "answer"))
    _require_answers(kind, problems)
    if kind == "program":
        return partial(program, unsafe=_runs_unsafe(unsafe))
    return checkers[kind]


def _runs_unsafe(allowed: bool) -> bool:
    """True if programs run without a sandbox. Raises EnvironmentFault where there is none and that is not allowed."""
    require(allowed)
    reason = lacking()
    if reason:
        logger.warning("%s.unsafe=true: code that the model writes runs WITHOUT a sandbox (%s)", _SECTION, reason)
    return bool(reason)


def infer_checker(problems: Sequence[Problem]) -> CheckerName:
    """The checker that fits all these reference answers."""
    answers = [problem.answer for problem in problems]
    if not answers:
        raise UsageError(
            "hierarchical.problems.checker=auto: there are no answers to look at; name numeric, exact, boxed or program"
        )
    if all(last_boxed(answer) is not None for answer in answers):
        return "boxed"
    if all(_ASSERTS.search(answer) for answer in answers):
        return "program"
    return "numeric" if all(number(answer) is not None for answer in answers) else "exact"


def checked_score(checker: Checker, problem: Problem, answer: str) -> float:
    """The checker's score, in [0, 1]. Raises InputError, in one line that names the problem, where the checker raises
    or gives anything else; errors of R2V pass unchanged."""
    try:
        score = float(checker(problem, answer))
    except R2VError:
        raise
    except Exception as error:  # a checker of somebody else's may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"problem {problem.id}: its checker failed on the answer {_shown(answer)} ({reason}); mend the "
            "checker, or take the problem out"
        ) from error
    if not 0.0 <= score <= 1.0:
        raise InputError(
            f"problem {problem.id}: its checker gave {score} for the answer {_shown(answer)}; a score lies "
            "in [0, 1], mend the checker"
        )
    return score


def numeric(problem: Problem, answer: str) -> float:
    """1 where the answer's final number is the problem's: the one that #### marks, or the last one in the last box, or
    else the last of all. Equal means within a millionth of its size."""
    wanted, got = number(problem.answer), _marked_number(answer) if "####" in answer else _last_number(answer)
    return float(wanted is not None and got is not None and _equal(wanted, got))


def _last_number(answer: str) -> Fraction | None:
    return number(_final(answer), last=True)


def _marked_number(answer: str) -> Fraction | None:
    """The number after the last ####: the first of its line, or of what an equation there comes to. A remark in
    brackets does not count: `#### 12 (which is 3*4)` is 12."""
    line = next((line for line in _final(answer).splitlines() if line.strip()), "")
    bare = _REMARK.sub("", line) if number(_REMARK.sub("", line), last=True) is not None else line
    found = _NUMBER.findall(bare.rpartition("=")[2]) or _NUMBER.findall(bare)
    return _fraction(found[0]) if found else None


def exact(problem: Problem, answer: str) -> float:
    """1 where the words after the last #### (or in the last box, or all of them) are the problem's."""
    return float(_plain(_final(answer)) == _plain(problem.answer))


def boxed(problem: Problem, answer: str) -> float:
    """1 where the last box, or without one what follows the last ####, means what the problem's does."""
    got, held = last_boxed(answer), last_boxed(problem.answer)
    if got is None and "####" in answer:
        got = answer.rpartition("####")[2].strip()
    return float(bool(got) and got is not None and same(problem.answer if held is None else held, got))


def number(text: str, *, last: bool = False) -> Fraction | None:
    """The only (or the last) number of a text, exactly; None where there is none, or several and not the last is asked
    for. Thousands' commas, signs, decimals, exponents and a/b are understood."""
    found = _NUMBER.findall(text)
    if not found or (len(found) > 1 and not last):
        return None
    return _fraction(found[-1])


def _fraction(text: str) -> Fraction | None:
    above, _, below = text.replace(",", "").partition("/")
    if below and not int(below):
        return None
    return Fraction(above.strip()) / (int(below) if below else 1)


def _equal(left: Fraction, right: Fraction) -> bool:
    return left == right or math.isclose(left, right, rel_tol=_CLOSE)


def _final(answer: str) -> str:
    """The marked part of an answer, where the final one stands; without a mark all of it."""
    if "####" in answer:
        return answer.rpartition("####")[2]
    held = last_boxed(answer)
    return answer if held is None else held


def _plain(text: str) -> str:
    held = last_boxed(text)
    return " ".join((text if held is None else held).split()).strip(" .").casefold()


def _require_answers(kind: str, problems: Sequence[Problem]) -> None:
    for problem in problems:
        if kind == "numeric" and number(problem.answer) is None:
            raise InputError(
                f"problem {problem.id}: its answer {_shown(problem.answer)} is no number, so the numeric "
                "checker finds nothing right; set hierarchical.problems.checker=exact"
            )
        if kind == "program" and not _ASSERTS.search(problem.answer):
            raise InputError(
                f"problem {problem.id}: its answer {_shown(problem.answer)} asserts nothing, so the "
                "program checker would find everything right; give Python with assert statements"
            )
        if kind == "program":
            _require_python(problem)


def _require_python(problem: Problem) -> None:
    try:
        ast.parse(problem.answer)
    except (SyntaxError, ValueError) as error:
        raise InputError(
            f"problem {problem.id}: its answer {_shown(problem.answer)} is no Python ({error}), so the program checker "
            "would find everything wrong; mend it"
        ) from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def program(problem: Problem, answer: str, *, unsafe: bool = False) -> float:
    """1 where the answer's code (the last fenced block, or all of it) passes the problem's tests; 0 where it raised,
    was cut off, or left before the tests were through.

    The code runs alone; the tests run in a process that it cannot reach, and compare plain values
    (`r2v.sandbox.verdict`). Raises EnvironmentFault where there is no sandbox (and not `unsafe`), and InputError for
    tests that cannot be judged.
    """
    blocks = _BLOCK.findall(answer)
    try:
        return float(passes(blocks[-1] if blocks else answer, problem.answer, limits=LIMITS, unsafe=unsafe))
    except InputError as error:
        raise InputError(f"problem {problem.id}: {error}") from None
