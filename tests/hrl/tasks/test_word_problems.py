"""The bundled problems: right answers, disjoint splits, the same for the same key."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from r2v.errors import UsageError
from r2v.hrl.tasks.word_problems import (
    FIRST_STEP,
    LARGEST_OPERAND,
    LARGEST_RESULT,
    SECOND_STEP,
    SMALLEST_OPERAND,
    ArithmeticProblem,
    Split,
    word_problems,
)

SPLITS: tuple[Split, ...] = get_args(Split)
SIGNS = {"sum": "+", "difference": "-", "product": "*"}


def worked(text: str) -> tuple[str, int]:
    """Return the combination of operations in a text, found by its wordings, and the result."""
    first, second, *_ = text.split(". ")
    operations = []
    for said, wordings in ((first, FIRST_STEP), (second, SECOND_STEP)):
        shapes = {
            operation: [re.sub(r"\\\{\w\\\}", r"\\w+", re.escape(one.rstrip("."))) for one in ones]
            for operation, ones in wordings.items()
        }
        operations += [operation for operation, ones in shapes.items() if any(re.fullmatch(one, said) for one in ones)]
    a, b, c = re.findall(r"\d+", text)
    assert len(operations) == 2
    sum_ = f"({a} {SIGNS[operations[0]]} {b}) {SIGNS[operations[1]]} {c}"
    return sum_, eval(sum_)


@pytest.mark.parametrize("split", SPLITS)
def test_every_answer_is_what_the_words_come_to(split: Split) -> None:
    problems = word_problems(300, 0, split)
    assert len(problems) == 300
    for problem in problems:
        assert problem.split == split and problem.answer == str(worked(problem.text)[1])
        assert 1 <= int(problem.answer) <= LARGEST_RESULT
        assert all(SMALLEST_OPERAND <= int(number) <= LARGEST_OPERAND for number in re.findall(r"\d+", problem.text))


def test_no_combination_of_a_split_is_in_another_whatever_the_seed() -> None:
    seen = {
        split: {worked(problem.text)[0] for seed in (0, 1) for problem in word_problems(800, seed, split)}
        for split in SPLITS
    }
    assert all(len(sums) > 80 for sums in seen.values())
    assert not seen["train"] & seen["eval"] and not seen["train"] & seen["tune"] and not seen["tune"] & seen["eval"]


def test_the_key_decides_and_a_longer_list_begins_as_a_shorter_one() -> None:
    assert word_problems(50, 3, "train") == word_problems(80, 3, "train")[:50]
    assert {p.text for p in word_problems(50, 3, "train")} != {p.text for p in word_problems(50, 4, "train")}


def test_ids_and_texts_are_distinct() -> None:
    problems = [problem for split in SPLITS for problem in word_problems(400, 0, split)]
    assert len({problem.id for problem in problems}) == len({problem.text for problem in problems}) == len(problems)


def test_all_operations_come_up() -> None:
    signs = {re.sub(r"\d+", "", worked(problem.text)[0]) for problem in word_problems(300, 0, "eval")}
    assert len(signs) == 9


def test_the_arithmetic_of_a_combination() -> None:
    made = ArithmeticProblem(first="sum", second="product", a=4, b=7, c=3)
    assert (made.step, made.answer) == (11, 33)


def test_a_split_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="allowed are train, tune, eval"):
        word_problems(1, 0, "test")  # type: ignore[arg-type]
