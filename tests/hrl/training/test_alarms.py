"""Warnings of a training, each logged once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.config import HierarchicalConfig
from r2v.hrl.training.alarms import collapsed, echo_trap, raised
from r2v.hrl.training.state import WATCHED, TrainingState

H = HierarchicalConfig(answer_tokens=16, hint_tokens=8)


def names(metrics: dict[str, float], iteration: int = 3, **history: list[float]) -> dict[str, str]:
    known = {name: list[float]() for name in WATCHED} | {
        name.replace("_", "/", 1): row for name, row in history.items()
    }
    return dict(raised(H, iteration, metrics, known))


@pytest.mark.parametrize(
    ("means", "spreads", "trapped"),
    [
        ([0.5] * 10, [0.4] * 5 + [0.1] * 5, True),
        ([0.5] * 5 + [0.9] * 5, [0.4] * 5 + [0.1] * 5, False),
        ([0.5] * 10, [0.4] * 5 + [0.25] * 5, False),
        ([0.5] * 9, [0.4] * 4 + [0.0] * 5, False),
        ([0.0] * 12, [0.0] * 12, False),
        ([0.02] * 10, [0.1] * 5 + [0.0] * 5, False),
        ([0.2] * 5 + [0.5] * 5 + [0.3] * 5, [0.1] * 5 + [0.5] * 5 + [0.2] * 5, True),
    ],
)
def test_the_echo_trap_is_less_spread_for_no_more_reward(
    means: list[float], spreads: list[float], trapped: bool
) -> None:
    assert echo_trap(list(zip(means, spreads, strict=True))) is trapped


@pytest.mark.parametrize(
    ("rewards", "fell"),
    [
        ([0.8] * 5 + [0.3] * 5, True),
        ([0.8] * 5 + [0.5] * 5, False),
        ([0.8] * 5 + [0.3] * 4, False),
        ([0.09] * 5 + [0.0] * 5, False),
        ([0.1] * 5 + [0.8] * 5, False),
    ],
)
def test_a_collapse_is_half_of_the_best_and_not_a_bad_start(rewards: list[float], fell: bool) -> None:
    assert collapsed(rewards) is fell


def test_what_is_cut_is_told_in_the_first_iteration_with_the_remedy() -> None:
    cut = {"answer/cut": 0.99, "hint/cut": 0.1, "prompt/cut": 2.0}
    told = names(cut, iteration=0)
    assert set(told) == {"cut_answer", "cut_hint", "cut_prompt"}
    assert told["cut_answer"].startswith("99 % of answers were cut at hierarchical.answer_tokens=16")
    assert "hierarchical.hint_tokens=8" in told["cut_hint"] and "policy.max_seq_len" in told["cut_prompt"]
    assert not names(cut, iteration=1) and not names({"answer/cut": 0.05, "prompt/cut": 0.0}, iteration=0)


def test_an_actor_that_explores_no_more_or_drifts_away_is_named() -> None:
    assert set(names({"actor/kl": 1.5}, actor_entropy=[1.0, 0.05])) == {"entropy", "drift"}
    assert not names({"actor/kl": 0.5}, actor_entropy=[1.0, 0.2])


def test_the_course_of_a_run_is_watched() -> None:
    state = TrainingState(history={"reward/mean": [0.5, 0.6], "reward/std": [0.1, 0.2]}, alarms=["echo_trap"])
    state.metrics = {"reward/mean": 0.7, "reward/std": 0.3}
    state.watch()
    assert state.history == {"reward/mean": [0.5, 0.6, 0.7], "reward/std": [0.1, 0.2, 0.3], "actor/entropy": []}
    assert not dict(raised(replace(H, lr=1.0), 9, state.metrics, state.history))
