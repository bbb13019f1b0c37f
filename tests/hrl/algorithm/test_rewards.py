"""Allowed and refused rewards, with the table in which a bonus for improvement spoils the first answer."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from r2v.config import GuidanceConfig, HierarchicalConfig
from r2v.errors import UsageError
from r2v.hrl.algorithm.rewards import hint_rewards, turn_rewards
from r2v.hrl.algorithm.samples import HintBatch
from tests.hrl import tabular_mdp

SCORES = torch.tensor([[0.0, 1.0], [1.0, 0.5]])


def hints(before: Tensor, after: Tensor, **counts: Tensor) -> HintBatch:
    """Return one hint for each answer, with the counts that the terms of its reward read."""
    nothing: Any = torch.zeros(len(before), 1, dtype=torch.bool)
    said = {"leaked": nothing, "says_right": nothing, "tokens": nothing.float()}
    said |= {name: count[:, None] for name, count in counts.items()}
    return HintBatch(completions=[], before=before[:, None], after=after[:, None], **said)


@pytest.mark.parametrize(("alpha", "first"), [(0, 2), (1, 2), (2, 0), (10, 0)])
def test_a_bonus_for_improvement_makes_the_wrong_first_answer_best(alpha: float, first: int) -> None:
    r1, r2 = tabular_mdp.first_score(), tabular_mdp.second_score()
    bonus = r2 + alpha * (r2 - r1[:, None, None])
    q = tabular_mdp.best((r1, bonus))
    assert int(q.argmax()) == first
    assert q.tolist() == pytest.approx([0.9 * (1 + alpha)] * 2 + [1.9])


@pytest.mark.parametrize("alpha", [0, 1, 2, 10])
def test_whoever_pays_the_first_answer_less_than_nothing_is_refused(alpha: float) -> None:
    """The bonus again, with each score paid in its own turn: its weights are refused exactly where they would change
    the best first answer."""
    weights = [1 - tabular_mdp.GAMMA * alpha, 1.0 + alpha]
    r1, r2 = tabular_mdp.first_score(), tabular_mdp.second_score()
    flipped = int(tabular_mdp.best((weights[0] * r1, weights[1] * r2)).argmax()) != 2
    if not flipped:
        assert HierarchicalConfig(rewards=weights).rewards == weights
        return
    with pytest.raises(UsageError, match="rewarded for a wrong first answer learns to give one") as refusal:
        HierarchicalConfig(rewards=weights)
    assert "\n" not in str(refusal.value) and str(refusal.value).startswith("hierarchical.rewards ")


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([-0.1, 1.0], "negative"),
        ([0.0, -0.5], "negative"),
        ([1.0, 0.0], "last answer"),
        ([], "one share per turn"),
        ([0.0, 0.5, 1.0], "one share per turn"),
        ([float("nan"), 1.0], "finite"),
        ([0.0, float("inf")], "finite"),
    ],
)
def test_weights_that_cannot_be(weights: list[float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        HierarchicalConfig(rewards=weights)


def test_the_last_answer_alone_is_paid_unless_asked_otherwise() -> None:
    assert turn_rewards(SCORES, HierarchicalConfig().rewards).tolist() == [[0.0, 1.0], [0.0, 0.5]]
    assert turn_rewards(SCORES, [0.5, 1.0]).tolist() == [[0.0, 1.0], [0.5, 0.5]]
    three = torch.tensor([[1.0, 0.5, 1.0]])
    assert turn_rewards(three, [0.0, 2.0, 1.0]).tolist() == [[0.0, 1.0, 1.0]]


def test_a_hint_is_paid_for_the_difference_and_for_harm_too() -> None:
    before, after = SCORES.T
    assert hint_rewards(hints(before, after), GuidanceConfig()).flatten().tolist() == [1.0, -0.5]
    told = hints(
        before,
        after,
        says_right=torch.tensor([True, True]),
        leaked=torch.tensor([True, False]),
        tokens=torch.tensor([10.0, 20.0]),
    )
    paid = hint_rewards(told, GuidanceConfig(judging=0.1, leak=0.5, length=0.01))
    assert paid.flatten().tolist() == pytest.approx([1.0 + 0.0 - 0.5 - 0.1, -0.5 + 0.1 - 0.2])


def test_an_answer_with_half_the_score_counts_as_right() -> None:
    before = torch.tensor([0.5, 0.4999, 0.5, 0.4999])
    says_right = torch.tensor([True, True, False, False])
    paid = hint_rewards(hints(before, before, says_right=says_right), GuidanceConfig(judging=1.0))
    assert paid.flatten().tolist() == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("term", ["judging", "leak", "length"])
def test_a_term_weighs_a_finite_number_that_is_not_negative(term: str) -> None:
    for bad in (-0.1, float("inf"), float("nan")):
        options: dict[str, Any] = {term: bad}
        with pytest.raises(UsageError, match=rf"^hierarchical\.guidance\.{term}"):
            GuidanceConfig(**options)


def test_the_package_loads_torch_when_a_name_that_needs_it_is_used() -> None:
    code = (
        "import sys, r2v.hrl; assert 'torch' not in sys.modules; "
        "from r2v.hrl import DoubleCritic; assert 'torch' in sys.modules and DoubleCritic.__name__ == 'DoubleCritic'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
