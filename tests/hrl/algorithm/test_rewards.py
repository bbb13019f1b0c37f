"""Which rewards are allowed and which are refused, with the table in which a bonus for improvement spoils the first
answer."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from r2v.errors import UsageError
from r2v.hrl.algorithm.rewards import GuidanceReward, TurnRewards
from tests.hrl import tabular_mdp

SCORES = torch.tensor([[0.0, 1.0], [1.0, 0.5]])


@pytest.mark.parametrize(("alpha", "first"), [(0, 2), (1, 2), (2, 0), (10, 0)])
def test_a_bonus_for_improvement_makes_the_wrong_first_answer_best(alpha: float, first: int) -> None:
    r1, r2 = tabular_mdp.first_score(), tabular_mdp.second_score()
    bonus = r2 + alpha * (r2 - r1[:, None, None])
    q = tabular_mdp.best((r1, bonus))
    assert int(q.argmax()) == first
    assert q.tolist() == pytest.approx([0.9 * (1 + alpha)] * 2 + [1.9])


@pytest.mark.parametrize("alpha", [0, 1, 2, 10])
def test_whoever_pays_the_first_answer_less_than_nothing_is_refused(alpha: float) -> None:
    """The bonus again, each score paid where it is earned: its weights are refused just where they would flip the
    best first answer."""
    weights = (1 - tabular_mdp.GAMMA * alpha, 1.0 + alpha)
    r1, r2 = tabular_mdp.first_score(), tabular_mdp.second_score()
    flipped = int(tabular_mdp.best((weights[0] * r1, weights[1] * r2)).argmax()) != 2
    if not flipped:
        assert TurnRewards(weights=weights).weights == weights
        return
    with pytest.raises(UsageError, match="answer 1 would be paid for being wrong") as refusal:
        TurnRewards(weights=weights)
    assert "\n" not in str(refusal.value) and str(refusal.value).startswith("hierarchical.rewards=[")


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ((-0.1, 1.0), "answer 1 "),
        ((0.0, -0.5, 1.0), "answer 2 "),
        ((1.0, 0.0), "last answer"),
        ((), "last answer"),
        ((float("nan"), 1.0), "finite"),
        ((0.0, float("inf")), "finite"),
    ],
)
def test_weights_that_cannot_be(weights: tuple[float, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TurnRewards(weights=weights)


def test_the_last_answer_alone_is_paid_unless_asked_otherwise() -> None:
    assert TurnRewards().of(SCORES).tolist() == [[0.0, 1.0], [0.0, 0.5]]
    assert TurnRewards(weights=(0.5, 1.0)).of(SCORES).tolist() == [[0.0, 1.0], [0.5, 0.5]]
    three = torch.tensor([[1.0, 0.5, 1.0]])
    assert TurnRewards(weights=(0.0, 2.0, 1.0)).of(three).tolist() == [[0.0, 1.0, 1.0]]
    with pytest.raises(UsageError, match="3 turns were played"):
        TurnRewards().of(three)


def test_a_hint_is_paid_for_the_difference_and_for_harm_too() -> None:
    before, after = SCORES.T
    assert GuidanceReward().of(before, after).tolist() == [1.0, -0.5]
    paid = GuidanceReward(judging=0.1, leak=0.5, length=0.01).of(
        before,
        after,
        says_right=torch.tensor([True, True]),
        leaked=torch.tensor([True, False]),
        tokens=torch.tensor([10, 20]),
    )
    assert paid.tolist() == pytest.approx([1.0 + 0.0 - 0.5 - 0.1, -0.5 + 0.1 - 0.2])


def test_an_answer_with_half_the_score_counts_as_right() -> None:
    before = torch.tensor([0.5, 0.4999, 0.5, 0.4999])
    says_right = torch.tensor([True, True, False, False])
    paid = GuidanceReward(judging=1.0).of(before, before, says_right=says_right)
    assert paid.tolist() == [1.0, 0.0, 0.0, 1.0]


def test_a_weight_of_nothing_or_beyond_all_numbers_is_told_apart() -> None:
    assert GuidanceReward(judging=0.0, leak=0.0, length=0.0) == GuidanceReward()
    for bad in (float("inf"), float("nan")):
        with pytest.raises(UsageError, match="must be a finite number >= 0"):
            GuidanceReward(leak=bad)


@pytest.mark.parametrize("term", ["judging", "leak", "length"])
def test_a_term_with_a_weight_needs_something_to_count(term: str) -> None:
    with pytest.raises(UsageError, match=rf"^hierarchical\.guidance\.{term} "):
        GuidanceReward(**{term: 0.1}).of(*SCORES.T)
    with pytest.raises(UsageError, match=rf"^hierarchical\.guidance\.{term}=-0\.1"):
        GuidanceReward(**{term: -0.1})


def test_checking_a_configuration_loads_no_torch() -> None:
    code = (
        "import sys, r2v.hrl.algorithm.rewards; r2v.hrl.algorithm.rewards.TurnRewards(); "
        "assert 'torch' not in sys.modules; "
        "from r2v.hrl import DoubleCritic; assert 'torch' in sys.modules and DoubleCritic.__name__ == 'DoubleCritic'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
