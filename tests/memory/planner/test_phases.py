"""The planner beside the arithmetic that came before it, whose answers tests/memory/guard.json keeps.

`python benchmarks/planner.py --write-guard` writes what the planner says of the same cases as `measured`.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.planner import guard_cases
from tests.trust import drawn

CASES = {case.name: (case, record) for case, record in guard_cases()}
TRL = "TRL's own fused loss has a tile of 32,768 words, whatever the vocabulary, and float32 gradients of the states"
WHOLE = (
    "all logits at once: the arithmetic had them by log-softmax, hierarchical training has them by logsumexp's copies"
)
CRITIC = "the critic reads states and utterances in two passes, as the trainer does, and its pooler is dropped"
EXPLAINED: dict[str, str] = {"bc": TRL, "naive": WHOLE, "critic": CRITIC}
"""By a word of the case's name, why the two differ by more than a hundredth."""


def reason(record: dict[str, Any], name: str) -> str | None:
    return next((why for word, why in EXPLAINED.items() if word in name.split()), None)


@pytest.mark.parametrize("name", CASES)
def test_the_planner_says_what_the_arithmetic_said_or_the_difference_is_explained(name: str) -> None:
    record = CASES[name][1]
    error = record["measured"] / record["peak"] - 1
    assert abs(error) <= 0.01 or reason(record, name), error


@pytest.mark.parametrize("name", drawn(list(CASES), 2, "guarded"))
def test_the_guard_has_what_the_planner_says(name: str) -> None:
    case, record = CASES[name]
    assert case.peak()[0] == pytest.approx(record["measured"], rel=1e-4)
