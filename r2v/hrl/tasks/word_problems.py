"""Bundled problems: two-step arithmetic in a few plain sentences.

    Ann has 4 apples and buys 7. Bob has 3 times as many. How many has Bob?

A problem is a combination of two operations and three numbers, in one of several wordings. A hash of the combination,
independent of the seed, assigns it to the split `train`, `tune` or `eval`, so that the splits are disjoint. The closed
vocabulary lets a tiny model learn them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from r2v.errors import UsageError
from r2v.hrl.tasks.problems import Problem
from r2v.randomness import generator, uniform

Split = Literal["train", "tune", "eval"]
Operation = Literal["sum", "difference", "product"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

SMALLEST_OPERAND, LARGEST_OPERAND, LARGEST_RESULT = 2, 9, 50
"""Range of the operands, and the largest result of either step (the smallest is 1)."""
_TUNE, _EVAL = 0.70, 0.80
"""Positions in [0, 1) at which the splits tune and eval begin."""

PEOPLE = ("Ann", "Bob", "Cara", "Dev", "Eve", "Finn", "Gia", "Hugo")
OBJECTS = ("apples", "books", "coins", "cards", "pens", "stamps", "shells", "stones")
FIRST_STEP: dict[Operation, tuple[str, ...]] = {
    "sum": ("{n} has {a} {i} and buys {b}.", "{n} has {a} {i} and finds {b}."),
    "difference": ("{n} has {a} {i} and loses {b}.", "{n} has {a} {i} and sells {b}."),
    "product": ("{n} has {a} bags of {b} {i}.", "{n} has {a} boxes of {b} {i}."),
}
SECOND_STEP: dict[Operation, tuple[str, ...]] = {
    "sum": ("{m} has {c} more.",),
    "difference": ("{m} has {c} fewer.",),
    "product": ("{m} has {c} times as many.",),
}
QUESTION = "How many has {m}?"


@dataclass(frozen=True, kw_only=True)
class ArithmeticProblem:
    """Arithmetic of a problem: (a first b) second c."""

    first: Operation
    second: Operation
    a: int
    b: int
    c: int

    @property
    def step(self) -> int:
        """Result of the first operation."""
        return apply(self.first, self.a, self.b)

    @property
    def answer(self) -> int:
        """Result of both operations."""
        return apply(self.second, self.step, self.c)

    @property
    def split(self) -> Split:
        """Split of this combination."""
        position = uniform("word problems", self.first, self.second, self.a, self.b, self.c)
        return "train" if position < _TUNE else "tune" if position < _EVAL else "eval"


def apply(operation: Operation, left: int, right: int) -> int:
    """Return left + right, left - right or left * right."""
    return left + right if operation == "sum" else left - right if operation == "difference" else left * right


def draw_problem(draw: random.Random, split: Split) -> ArithmeticProblem:
    """Return a problem of this split: uniform operations, then operands with results from 1 to `LARGEST_RESULT`."""
    first, second = draw.choice(OPERATIONS), draw.choice(OPERATIONS)
    while True:
        a, b, c = (draw.randint(SMALLEST_OPERAND, LARGEST_OPERAND) for _ in range(3))
        problem = ArithmeticProblem(first=first, second=second, a=a, b=b, c=c)
        if 1 <= problem.step <= LARGEST_RESULT and 1 <= problem.answer <= LARGEST_RESULT and problem.split == split:
            return problem


def wording(problem: ArithmeticProblem, draw: random.Random) -> str:
    """Return the text of a problem."""
    n, m = draw.sample(PEOPLE, 2)
    text = f"{draw.choice(FIRST_STEP[problem.first])} {draw.choice(SECOND_STEP[problem.second])} {QUESTION}"
    return text.format(n=n, m=m, i=draw.choice(OBJECTS), a=problem.a, b=problem.b, c=problem.c)


def word_problems(count: int, seed: int, split: Split) -> list[Problem]:
    """Return `count` problems of a split with distinct texts; the first ones are the same for every `count`.

    Raises UsageError for an unknown split.
    """
    if split not in get_args(Split):
        raise UsageError(f"word problems of split {split}: allowed are {', '.join(get_args(Split))}")
    texts: set[str] = set()
    problems: list[Problem] = []
    for problem, text in _endless(seed, split):
        if len(problems) == count:
            break
        if text not in texts:
            texts.add(text)
            problems.append(
                Problem(id=f"{split}-{seed}-{len(problems):05}", text=text, answer=str(problem.answer), split=split)
            )
    return problems


def _endless(seed: int, split: Split) -> Iterator[tuple[ArithmeticProblem, str]]:
    number = 0
    while True:
        draw = generator("word problems", seed, split, number)
        problem = draw_problem(draw, split)
        yield problem, wording(problem, draw)
        number += 1
