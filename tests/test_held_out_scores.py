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
    drawn_rows = map(make_row, range(4_800))
    return [replace(row, features={**row.features, ENTROPY: row.features["uncertainty.x"]}) for row in drawn_rows]


def test_a_router_of_the_only_feature_that_matters_ranks_as_it_does_and_is_calibrated(rows: list[FeatureRow]) -> None:
    scores = held_out(rows, LOGISTIC)
    assert scores.states == sum(row.split == "calibration" for row in rows)
    assert scores.router == pytest.approx(scores.entropy, abs=0.02)
    assert (
        scores.router is not None
        and scores.router > 0.75
        and scores.ece <= 0.05
        and scores.brier < scores.brier_constant
    )
    assert scores.savable == sum((row.q_llm or 0) > 0 for row in rows if row.split == "calibration")
    assert scores.router_savable is None, "where each state that can be saved gains, nothing is ranked"


def test_labels_that_are_shuffled_are_ranked_by_chance(rows: list[FeatureRow]) -> None:
    labels = [row.q_llm for row in rows]
    generator("held out").shuffle(labels)
    scores = held_out([replace(row, q_llm=label) for row, label in zip(rows, labels, strict=True)], LOGISTIC)
    assert scores.router == pytest.approx(0.5, abs=0.05) and scores.ece <= 0.05
