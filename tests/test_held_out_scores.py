"""Scores of tasks that a router has not seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.held_out_scores import ENTROPY, held_out
from r2v.config import RouterConfig
from r2v.randomness import generator
from r2v.router.labels import FeatureRow
from tests.router.rows import make_row

LOGISTIC = RouterConfig(model="logistic")


@pytest.fixture(scope="module")
def rows() -> list[FeatureRow]:
    made = map(make_row, range(4_800))
    return [replace(row, features={**row.features, ENTROPY: row.features["uncertainty.x"]}) for row in made]


def test_a_router_of_the_only_feature_that_matters_ranks_as_it_does_and_is_calibrated(rows: list[FeatureRow]) -> None:
    one = held_out(rows, LOGISTIC)
    assert one.states == sum(row.split == "calibration" for row in rows)
    assert one.router == pytest.approx(one.entropy, abs=0.02)
    assert one.router is not None and one.router > 0.75 and one.ece <= 0.05 and one.brier < one.brier_constant
    assert one.savable == sum((row.q_llm or 0) > 0 for row in rows if row.split == "calibration")
    assert one.router_savable is None, "where each state that can be saved gains, nothing is ranked"


def test_labels_that_are_shuffled_are_ranked_by_chance(rows: list[FeatureRow]) -> None:
    labels = [row.q_llm for row in rows]
    generator("held out").shuffle(labels)
    one = held_out([replace(row, q_llm=label) for row, label in zip(rows, labels, strict=True)], LOGISTIC)
    assert one.router == pytest.approx(0.5, abs=0.05) and one.ece <= 0.05
