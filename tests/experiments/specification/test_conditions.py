"""Checks are expressions over a configuration's keys, and evaluate nothing else."""

from __future__ import annotations

import pytest

from r2v.errors import UsageError
from r2v.experiments.specification.conditions import holds, matches, require_check

CONFIG = {"layers": 4, "rates": [0.1, 0.2, 0.3], "model": "greedy", "inner": {"deep": {"size": 2}}, "max": 7, "none": 0}


@pytest.mark.parametrize(
    "text",
    [
        "len(rates) == layers - 1",
        "model != 'greedy' or len(rates) < 9",
        "inner.deep.size == 2 and inner['deep'].size < 3 <= layers",
        "max == 7 and max(1, layers) == 4",
        "true and not false and null not in rates",
        "-layers % 3 == 2 and layers // 3 == 1",
    ],
)
def test_a_check_reads_keys_sections_and_lists(text: str) -> None:
    assert holds(text, CONFIG) and not holds(f"not ({text})", CONFIG)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("depth == 1", "no key depth"),
        ("inner.wide == 1", "no key wide"),
        ("layers.real == 4", "cannot be told"),
        ("len.__class__ == 1", "no key len"),
        ("1 / none == 2", "division by zero"),
        ("rates[9] == 1", "out of range"),
        ("model < 3", "cannot be told"),
    ],
)
def test_what_cannot_be_told_is_refused(text: str, words: str) -> None:
    require_check(text)
    with pytest.raises(UsageError, match=words):
        holds(text, CONFIG)


@pytest.mark.parametrize(
    "text",
    ["open('x')", "rates.append(1)", "[x for x in rates]", "f'{rates}'", "lambda: 1", "9 ** 9", "len(*rates)", "a = 1"],
)
def test_nothing_else_is_evaluated(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not evaluated|no expression"):
        require_check(text)


def test_a_filter_means_a_value_or_one_of_several() -> None:
    assert matches({"model": ["greedy", "other"], "inner.deep.size": 2}, CONFIG)
    assert not matches({"layers": True}, {"layers": 1}) and not matches({"absent": 1}, CONFIG)
