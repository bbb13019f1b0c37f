from __future__ import annotations

import pytest

from r2v.config import RouterConfig
from r2v.errors import InputError, UsageError
from r2v.router.baselines import FIXED_SCORES, RECOMPUTED, score_function
from r2v.router.labels import labelled
from r2v.router.training import fit

from .rows import make_row

FEATURES = {
    "uncertainty.entropy_max": 1.386294,
    "uncertainty.entropy_nonfree_max": 0.0,
    "uncertainty.entropy_mean": 0.693147,
    "uncertainty.logprob_mean": -0.287682,
    "uncertainty.logprob_sum": -1.386294,
    "verifier.v_proposal": 0.75,
}


def test_scores_known_answers() -> None:
    of_features = FIXED_SCORES.keys() - set(RECOMPUTED)
    score = {method: score_function(method, {})(FEATURES, 1, "t", 0) for method in of_features}
    assert score == {
        "entropy_router": 0.75,
        "entropy_nonfree_router": 0.0,
        "verifier_router": 0.25,
        "mean_entropy_router": 0.5,
        "logprob_router": 0.25,
        "sequence_logprob_router": 0.75,
    }


def asked(method: str, threshold: float, steps: int = 16) -> list[int]:
    score = score_function(method, {})
    return [step for step in range(steps) if score({}, 1, "t", step) >= threshold]


def test_periodic_and_first_steps_know_the_step_alone() -> None:
    assert asked("periodic_router", 0.9) == [0, 8] and asked("periodic_router", 0.8) == [0, 4, 8, 12]
    assert asked("periodic_router", 0.55) == [0, 2, 4, 6, 8, 10, 12, 14] and asked("periodic_router", 0.01, 9) == [
        *range(9)
    ]
    assert [asked("first_steps_router", 1 / (n + 1) - 1e-6) for n in (1, 2, 5)] == [[0], [0, 1], [*range(5)]]


def test_random_router_is_keyed_and_uniform() -> None:
    score = score_function("random_router", {})
    draws = [score({}, 1, f"t{task}", step) for task in range(500) for step in range(8)]
    assert draws[9] == score(FEATURES, 1, "t1", 1) != score({}, 2, "t1", 1)
    assert abs(sum(draw < 0.2 for draw in draws) / 4_000 - 0.2) < 4 * (0.2 * 0.8 / 4_000) ** 0.5


def test_task_router_hands_over_whole_tasks_by_a_keyed_coin() -> None:
    score = score_function("task_router", {})
    draws = [{score({}, 1, f"t{task}", step) for step in range(8)} for task in range(4_000)]
    assert {len(of_task) for of_task in draws} == {1}
    assert score(FEATURES, 1, "t1", 7) in draws[1] and score({}, 2, "t1", 7) not in draws[1]
    assert draws[1].isdisjoint({score_function("random_router", {})({}, 1, "t1", step) for step in range(8)})
    assert abs(sum(min(of_task) < 0.2 for of_task in draws) / 4_000 - 0.2) < 4 * (0.2 * 0.8 / 4_000) ** 0.5


def test_disagreement_learns_another_label_than_r2v() -> None:
    rows = [make_row(number) for number in range(400)]
    config = RouterConfig(features=["uncertainty", "page"])
    models = {
        "r2v": fit(labelled(rows, "counterfactual"), config, 0),
        "disagreement_router": fit(labelled(rows, "disagreement"), config, 0),
    }
    low, high = ({"uncertainty.x": x, "page.noise": 0.0} for x in (-2.0, 2.0))
    r2v, disagreement = (score_function(method, models) for method in models)
    assert r2v(high, 1, "t", 0) - r2v(low, 1, "t", 0) > 0.5
    assert abs(disagreement(high, 1, "t", 0) - disagreement(low, 1, "t", 0)) < 0.3


def test_refusals() -> None:
    with pytest.raises(UsageError, match="entropy_router"):
        score_function("entropi_router", {})
    with pytest.raises(InputError, match="v_proposal is absent"):
        score_function("verifier_router", {})({}, 1, "t", 0)
