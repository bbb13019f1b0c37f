"""Checkers: functions that score an answer to a problem in [0, 1]; 1 is right.

    checker_of("auto", problems)(problem, "... #### 72")     # 1.0

`numeric` compares numbers, 1/2 with 0.5 and 1,000 with 1000; `exact` compares words, ignoring case and spaces; `boxed`
compares the mathematical meaning of the last \\boxed{}, or of the text after ####, by math-verify
(`r2v.hrl.tasks.equivalence`); `program` runs the answer's code and the problem's tests in two sandboxes. `auto` chooses
by the reference answers: boxes, else assertions, else numbers, else words. `package.module:function` is a custom
checker (docs/extending/checker.md).
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
"""(problem, text of the answer) -> score in [0, 1]; 1 is right."""
CheckerName = Literal["numeric", "exact", "boxed", "program"]

LIMITS = Limits()
"""Limits of an answer's program, and of its tests."""
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?(?:\s*/\s*\d[\d,]*)?")
_ASSERTS = re.compile(r"^\s*assert\b", re.MULTILINE)
_KEY = "hierarchical.problems.checker"
_CLOSE = 1e-6
_REMARK = re.compile(r"\([^()]*\)")


def kind_of(name: str, problems: Sequence[Problem]) -> str:
    """Return the checker's name or path; `auto` is resolved by the problems' answers."""
    return infer_checker(problems) if name == "auto" else name


def checker_of(name: str, problems: Sequence[Problem] = (), *, unsafe: bool = False) -> Checker:
    """Return the checker of this name or path `package.module:function`; `auto` is chosen by the problems' answers.
    `unsafe`: without a sandbox, log a warning and run programs outside one.

    Raises UsageError for an unknown name or a path that cannot be loaded, InputError for a reference answer that this
    checker can never score as right, and EnvironmentFault if programs need a sandbox and it is missing.
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
    """True if programs run without a sandbox. Raises EnvironmentFault if it is missing and that is not allowed."""
    require(allowed)
    reason = lacking()
    if reason:
        logger.warning("the model's code runs WITHOUT a sandbox: hierarchical.problems.unsafe=true reason=%s", reason)
    return bool(reason)


def infer_checker(problems: Sequence[Problem]) -> CheckerName:
    """Return the checker that fits all reference answers. Raises UsageError without problems."""
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
    """Return the checker's score in [0, 1]. Raises InputError, in one line that names the problem, if the checker
    raises or returns anything else; errors of R2V pass unchanged."""
    try:
        score = float(checker(problem, answer))
    except R2VError:
        raise
    except Exception as error:  # a custom checker may raise anything
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
    """Return 1 if the answer's final number equals the problem's, within a relative 1e-6, else 0. The final number is
    the one after ####, or the last one in the last box, or the last one of all."""
    expected, got = number(problem.answer), _marked_number(answer) if "####" in answer else _last_number(answer)
    return float(expected is not None and got is not None and _equal(expected, got))


def _last_number(answer: str) -> Fraction | None:
    return number(_final(answer), last=True)


def _marked_number(answer: str) -> Fraction | None:
    """Return the first number of the line after the last ####, or of the right side of an equation there; None without
    one. A remark in brackets does not count: `#### 12 (which is 3*4)` is 12."""
    line = next((line for line in _final(answer).splitlines() if line.strip()), "")
    bare = _REMARK.sub("", line) if number(_REMARK.sub("", line), last=True) is not None else line
    numbers = _NUMBER.findall(bare.rpartition("=")[2]) or _NUMBER.findall(bare)
    return _fraction(numbers[0]) if numbers else None


def exact(problem: Problem, answer: str) -> float:
    """Return 1 if the words after the last #### (or in the last box, or all) are the problem's, else 0."""
    return float(_plain(_final(answer)) == _plain(problem.answer))


def boxed(problem: Problem, answer: str) -> float:
    """Return 1 if the last box, or else the text after the last ####, is equivalent to the problem's, else 0."""
    got, reference = last_boxed(answer), last_boxed(problem.answer)
    if got is None and "####" in answer:
        got = answer.rpartition("####")[2].strip()
    return float(bool(got) and got is not None and same(problem.answer if reference is None else reference, got))


def number(text: str, *, last: bool = False) -> Fraction | None:
    """Return the only (or the last) number of a text, exactly; None without a number, or with several unless `last`.
    Thousands' commas, signs, decimals, exponents and a/b are understood."""
    numbers = _NUMBER.findall(text)
    if not numbers or (len(numbers) > 1 and not last):
        return None
    return _fraction(numbers[-1])


def _fraction(text: str) -> Fraction | None:
    above, _, below = text.replace(",", "").partition("/")
    if below and not int(below):
        return None
    return Fraction(above.strip()) / (int(below) if below else 1)


def _equal(left: Fraction, right: Fraction) -> bool:
    return left == right or math.isclose(left, right, rel_tol=_CLOSE)


def _final(answer: str) -> str:
    """Return the marked part of an answer, after #### or in the last box; without a mark all of it."""
    if "####" in answer:
        return answer.rpartition("####")[2]
    boxed_text = last_boxed(answer)
    return answer if boxed_text is None else boxed_text


def _plain(text: str) -> str:
    boxed_text = last_boxed(text)
    return " ".join((text if boxed_text is None else boxed_text).split()).strip(" .").casefold()


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
    """Return 1 if the answer's code (the last fenced block, or all of it) passes the problem's tests, and 0 if it
    raises, is cut off, or exits before the tests end.

    The code runs alone; the tests run in a process that it cannot reach, and compare plain values
    (`r2v.sandbox.verdict`). Raises EnvironmentFault without a sandbox (unless `unsafe`), and InputError for tests that
    cannot be judged.
    """
    blocks = _BLOCK.findall(answer)
    try:
        return float(passes(blocks[-1] if blocks else answer, problem.answer, limits=LIMITS, unsafe=unsafe))
    except InputError as error:
        raise InputError(f"problem {problem.id}: {error}") from None
