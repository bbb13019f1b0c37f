from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.verifier.calibrate import report

from . import toy

BASE = toy.example(0, 1.0, [1])


def test_report_known_answers() -> None:
    examples = [
        replace(BASE, target=target, state_id=state)
        for target, state in ((1.0, "a"), (1.0, "b"), (0.0, "a"), (0.0, "b"))
    ]
    figures = report(examples, [0.9, 0.4, 0.6, 0.2])
    assert figures["auroc"] == 0.75
    assert figures["auroc_within_state"] == 1.0, "a: .9 > .6, b: .4 > .2"
    assert figures["auroc_length_alone"] == 0.5
    assert figures["brier"] == pytest.approx((0.01 + 0.36 + 0.36 + 0.04) / 4)
    assert figures["brier_constant"] == 0.25
    assert figures["accuracy"] == 0.5 == figures["accuracy_majority"]


def test_ties_count_a_half_and_probability_one_counts() -> None:
    examples = [replace(BASE, target=target) for target in (1.0, 0.0)]
    figures = report(examples, [1.0, 1.0])
    assert figures["auroc_within_state"] == 0.5 and figures["ece"] == 0.5 and figures["brier"] == 0.5


def test_one_class_has_no_auroc() -> None:
    figures = report([BASE, BASE], [0.2, 0.7])
    assert figures["auroc"] is None and figures["auroc_within_state"] is None
