"""Problems with known answers, read from files as they are published or made by `word_problems`.

A file is JSON Lines. Every line has a `problem` or `question`, and an `answer`: GSM8K's, whose last line is
`#### 72`; or, as in MATH, a `solution` that holds the answer in `\\boxed{...}`; or the bare answer. For programs the
answer is Python that asserts things of the code given. An `id` names a problem in every random draw; without one a
problem is called after what it says, so the order of lines decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.errors import InputError
from r2v.randomness import digest

_TEXTS, _ANSWERS = ("problem", "question"), ("answer", "solution")
_LINE = 'an object {"problem": ..., "answer": ...}'
_BOXES = ("\\boxed{", "\\fbox{")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A problem and its reference answer, which a checker compares answers with."""

    id: str
    text: str
    answer: str
    solution: str = ""
    """The worked solution that the answer was taken from, where the file has more than the answer."""
    split: str = ""
    """train, tune or eval of generated problems; empty for problems of a file."""


def read_problems(path: Path) -> list[Problem]:
    """The problems of a file, in its order.

    Raises InputError, with the line's number, for a line that is no problem: not a JSON object, without a text
    or an answer, or with the id of another line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"hierarchical.problems.path={path}: {error.strerror or error}; name a JSON Lines file of "
            '{"problem": ..., "answer": ...}, or bundled'
        ) from error
    problems: dict[str, Problem] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        problem = _problem(line, f"{path}:{number}")
        if problem.id in problems:
            raise InputError(
                f"{path}:{number}: the same id or the same problem as in line {lines[problem.id]} "
                f"({problem.id}); ids name random draws, make them differ"
            )
        problems[problem.id], lines[problem.id] = problem, number
    if not problems:
        raise InputError(f'{path}: holds no problems; expected JSON Lines of {{"problem": ..., "answer": ...}}')
    return list(problems.values())


def _problem(line: bytes, where: str) -> Problem:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error}); expected {_LINE}") from None
    if not isinstance(record, dict):
        raise InputError(f"{where}: a {type(record).__name__}, not {_LINE}")
    text = _text_under(record, _TEXTS, where)
    solution = _text_under(record, _ANSWERS, where)
    answer = final_answer(solution)
    if not answer:
        raise InputError(f"{where}: its answer ends in nothing; give what follows #### or stands in \\boxed{{}}")
    name = record.get("id")
    if name is not None and not (isinstance(name, (str, int)) and not isinstance(name, bool) and str(name)):
        raise InputError(f"{where}: id is {json.dumps(name)}; make it a text or a whole number, or leave it out")
    return Problem(
        id=digest(text)[:8].hex() if name is None else str(name),
        text=text,
        answer=answer,
        solution="" if solution == answer else solution,
    )


def _text_under(record: dict[str, Any], names: tuple[str, ...], where: str) -> str:
    """The text under the first of these names. A number counts as its text."""
    for name in names:
        if name in record:
            value = record[name]
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                value = json.dumps(value)
            if not isinstance(value, str) or not value.strip():
                raise InputError(f"{where}: {name} is {json.dumps(value)[:60]}; expected a text that says something")
            return value.strip()
    raise InputError(f"{where}: has no {' or '.join(names)} (keys: {', '.join(map(str, record)) or 'none'})")


def final_answer(text: str) -> str:
    """The final answer of a worked solution: the text after the last `####`, else the last `\\boxed{}` with its box,
    else the whole text.

    >>> final_answer("5 + 7 = 12\\n#### 12"), final_answer(r"so $x = \\boxed{\\frac{1}{2}}$.")
    ('12', '\\\\boxed{\\\\frac{1}{2}}')
    """
    if "####" in text:
        return text.rpartition("####")[2].strip()
    boxed = last_boxed(text)
    return text.strip() if boxed is None else f"\\boxed{{{boxed}}}"


def last_boxed(text: str) -> str | None:
    """The content of the last closed `\\boxed{...}` (or `\\fbox`), braces inside it balanced; None without one."""
    content = None
    for start in _boxes(text):
        depth, end = 1, start
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        content = content if depth else text[start : end - 1].strip()
    return content


def _boxes(text: str) -> Iterator[int]:
    """Positions after each opening of a box, in order."""
    yield from sorted(at + len(box) for box in _BOXES for at in range(len(text)) if text.startswith(box, at))
