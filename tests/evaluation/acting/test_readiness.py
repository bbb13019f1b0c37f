"""Readiness of a cloned policy for the later stages, and the message for one that is not ready."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from r2v.evaluation.acting.readiness import Readiness

GOOD = Readiness(parsed=1.0, exact=0.9, loss=0.1, falling=False, played=20, solved=12)


@pytest.mark.parametrize(
    ("changes", "hopeless", "said"),
    [
        ({}, False, "the small policy solved 12 of 20 calibration tasks"),
        ({"solved": 0}, False, "solved 0 of 20 calibration tasks"),
        ({"solved": 1, "exact": 0.1, "loss": 3.0}, False, "solved 1 of 20 calibration tasks: it repeats 10%"),
        ({"solved": 0, "exact": 0.1, "loss": 3.0, "falling": True}, True, "still falls: train longer"),
        ({"solved": 0, "exact": 0.1, "loss": 3.0}, True, "no longer falls: raise training.bc.lr, or see whether the"),
        ({"solved": 0, "parsed": 0.2, "exact": 0.0}, True, "80% of its replies .* see policy.tools"),
        ({"played": 0, "solved": 0, "exact": 0.1, "loss": 3.0}, False, "was not played: it repeats 10%"),
    ],
)
def test_it_is_hopeless_where_it_solves_nothing_and_has_not_learnt_what_it_was_shown(
    changes: dict[str, float], hopeless: bool, said: str
) -> None:
    found = replace(GOOD, **changes)
    assert found.hopeless == hopeless
    assert re.search(said, str(found)), str(found)
