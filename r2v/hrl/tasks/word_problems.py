"""The bundled problems: arithmetic in two steps, told in a few plain sentences.

    Ann has 4 apples and buys 7. Bob has 3 times as many. How many has Bob?

A problem is a combination of two operations and three numbers, in one of several wordings. The key of a combination
decides, once and for all, whether it is trained on (`train`), tuned on (`tune`) or only ever measured on (`eval`): no
number combination of one is found in another, whatever the seed. The closed vocabulary lets a tiny model learn them.
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

LEAST, MOST, LARGEST = 2, 9, 50
"""Numbers that are given, and the largest that any step comes to (the least is 1)."""
_TUNE, _EVAL = 0.70, 0.80
"""Where in [0, 1) the two smaller splits begin."""

NAMES = ("Ann", "Bob", "Cara", "Dev", "Eve", "Finn", "Gia", "Hugo")
ITEMS = ("apples", "books", "coins", "cards", "pens", "stamps", "shells", "stones")
FIRST: dict[Operation, tuple[str, ...]] = {
    "sum": ("{n} has {a} {i} and buys {b}.", "{n} has {a} {i} and finds {b}."),
    "difference": ("{n} has {a} {i} and loses {b}.", "{n} has {a} {i} and sells {b}."),
    "product": ("{n} has {a} bags of {b} {i}.", "{n} has {a} boxes of {b} {i}."),
}
SECOND: dict[Operation, tuple[str, ...]] = {
    "sum": ("{m} has {c} more.",),
    "difference": ("{m} has {c} fewer.",),
    "product": ("{m} has {c} times as many.",),
}
QUESTION = "How many has {m}?"


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The arithmetic of a problem: (a first b) second c."""

    first: Operation
    second: Operation
    a: int
    b: int
    c: int

    @property
    def step(self) -> int:
        """What the first operation comes to."""
        return apply(self.first, self.a, self.b)

    @property
    def answer(self) -> int:
        """What both come to."""
        return apply(self.second, self.step, self.c)

    @property
    def split(self) -> Split:
        """Where this combination belongs."""
        place = uniform("word problems", self.first, self.second, self.a, self.b, self.c)
        return "train" if place < _TUNE else "tune" if place < _EVAL else "eval"


def apply(operation: Operation, left: int, right: int) -> int:
    """left + right, left - right or left * right."""
    return left + right if operation == "sum" else left - right if operation == "difference" else left * right


def draw_sum(draw: random.Random, split: Split) -> Sum:
    """A combination of this split: the operations evenly, then numbers whose results are from 1 to `LARGEST`."""
    first, second = draw.choice(OPERATIONS), draw.choice(OPERATIONS)
    while True:
        a, b, c = (draw.randint(LEAST, MOST) for _ in range(3))
        made = Sum(first=first, second=second, a=a, b=b, c=c)
        if 1 <= made.step <= LARGEST and 1 <= made.answer <= LARGEST and made.split == split:
            return made


def told(made: Sum, draw: random.Random) -> str:
    """The combination in words."""
    n, m = draw.sample(NAMES, 2)
    text = f"{draw.choice(FIRST[made.first])} {draw.choice(SECOND[made.second])} {QUESTION}"
    return text.format(n=n, m=m, i=draw.choice(ITEMS), a=made.a, b=made.b, c=made.c)


def word_problems(count: int, seed: int, split: Split) -> list[Problem]:
    """`count` problems of a split, no wording of one twice; the first of them are the same for every `count`.

    Raises UsageError for a split that there is not.
    """
    if split not in get_args(Split):
        raise UsageError(f"word problems of split {split}: allowed are {', '.join(get_args(Split))}")
    texts: set[str] = set()
    problems: list[Problem] = []
    for made, text in _endless(seed, split):
        if len(problems) == count:
            break
        if text not in texts:
            texts.add(text)
            problems.append(
                Problem(id=f"{split}-{seed}-{len(problems):05}", text=text, answer=str(made.answer), split=split)
            )
    return problems


def _endless(seed: int, split: Split) -> Iterator[tuple[Sum, str]]:
    number = 0
    while True:
        draw = generator("word problems", seed, split, number)
        made = draw_sum(draw, split)
        yield made, told(made, draw)
        number += 1
