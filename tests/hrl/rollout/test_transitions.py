"""Episodes as rows: the rows each role learns from, the critic's replay, and the advantage of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from r2v.config import GuidanceConfig, HierarchicalConfig
from r2v.hrl.algorithm import compute_advantages, samples
from r2v.hrl.algorithm.advantage import gae
from r2v.hrl.algorithm.critic import CriticValues
from r2v.hrl.algorithm.losses import policy_loss, token_weights
from r2v.hrl.algorithm.rewards import hint_rewards
from r2v.hrl.rollout import transitions
from r2v.hrl.rollout.episode import GuidedEpisode, HintedAnswer, ScoredAnswer
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.training import metrics
from r2v.hrl.types import Completion

H = HierarchicalConfig(turns=3, rewards=[0.0, 0.5, 1.0], gamma=0.9)
COUNTER = iter(range(10_000))


def said(text: str = "", count: int = 1) -> Completion:
    """Return a completion that differs from all others."""
    number = next(COUNTER)
    return Completion(
        prompt=(1000 + number,),
        tokens=tuple(2000 + number + i for i in range(count)),
        logprobs=(-0.5,) * count,
        ended=True,
        version=0,
        text=text,
    )


def turn(score: float, text: str = "") -> ScoredAnswer:
    return ScoredAnswer(answer=said(text), score=score)


def episode(
    first: float, *groups: tuple[float, ...], hints: tuple[str, ...] = ("", ""), answer: str = "7"
) -> GuidedEpisode:
    """Return an episode with these scores: of the first answer, and of those behind each hint, the trunk's first."""
    tried = tuple(
        tuple(HintedAnswer(hint=said(text, 2), after=turn(score)) for text, score in zip(hints, group, strict=False))
        for group in groups
    )
    return GuidedEpisode(
        problem=Problem(id="p", text="?", answer=answer),
        hints=tried,
        turns=(turn(first), *(group[0].after for group in tried)),
    )


TWO = [episode(0.0, (0.25, 1.0), (0.5, 0.75)), episode(1.0, (0.5, 0.0), (1.0, 0.0))]


def test_the_actor_answers_for_the_trunk_and_for_all_last_answers() -> None:
    made = transitions.answers_of(TWO)
    one = TWO[0]
    assert made.completions[:4] == [
        one.turns[0].answer,
        one.turns[1].answer,
        one.hints[1][0].after.answer,
        one.hints[1][1].after.answer,
    ]
    assert len(made.completions) == 8 and one.hints[0][1].after.answer not in made.completions
    assert made.turn.tolist() == [0, 1, 2, 2] * 2
    assert made.trajectories.tolist() == [[0, 1, 2], [0, 1, 3], [4, 5, 6], [4, 5, 7]]
    assert made.scores.tolist() == [[0, 0.25, 0.5], [0, 0.25, 0.75], [1, 0.5, 1], [1, 0.5, 0]]


def test_the_guidance_answers_for_every_hint() -> None:
    made = transitions.hints_of(TWO)
    assert made.completions == [one.hint for each in TWO for group in each.hints for one in group]
    assert made.before[:, 0].tolist() == [0, 0.25, 1, 0.5]
    assert made.after.tolist() == [[0.25, 1], [0.5, 0.75], [0.5, 0], [1, 0]]
    assert made.tokens.tolist() == [[2, 2]] * 4


def test_the_critic_remembers_where_each_hint_led_and_every_end() -> None:
    made = transitions.transitions_of(TWO[:1], H.rewards, version=3)
    one = TWO[0]
    first, second = one.turns[0].answer, one.turns[1].answer
    last = [hinted.after.answer for hinted in one.hints[1]]
    assert made.observations == [first.prompt] * 2 + [second.prompt] * 2 + [end.prompt for end in last]
    assert made.actions == [first.tokens] * 2 + [second.tokens] * 2 + [end.tokens for end in last]
    assert made.next_observations[:2] == [hinted.after.answer.prompt for hinted in one.hints[0]]
    assert made.next_observations[2:4] == [end.prompt for end in last] == made.next_observations[4:]
    assert made.reward.tolist() == [0, 0, 0.125, 0.125, 0.5, 0.75]
    assert made.done.tolist() == [False] * 4 + [True] * 2 and made.version.tolist() == [3] * 6


def test_without_guidance_the_trunk_is_all_there_is() -> None:
    alone = GuidedEpisode(problem=TWO[0].problem, turns=TWO[0].turns, hints=((), ()))
    made = transitions.answers_of([alone])
    assert made.completions == [one.answer for one in alone.turns] and made.trajectories.tolist() == [[0, 1, 2]]
    assert len(transitions.transitions_of([alone], H.rewards, 0).done) == 3


def values(answers: samples.AnswerBatch) -> CriticValues:
    """Return critic values that differ for every answer and head."""
    count = len(answers.completions)
    q = torch.stack([torch.arange(count) * 0.1, torch.arange(count) * 0.1 + 0.05]).double()
    return CriticValues(q=q, v=q * 0.5, floor=torch.full((count,), 0.2, dtype=torch.float64))


def test_the_return_is_the_mean_over_the_ways_on() -> None:
    made = transitions.answers_of(TWO)
    ends = [0.5, 0.75, 1.0, 0.0]
    wanted = [
        0.9 * 0.125 + 0.81 * 0.625,
        0.125 + 0.9 * 0.625,
        *ends[:2],
        0.9 * 0.25 + 0.81 * 0.5,
        0.25 + 0.9 * 0.5,
        *ends[2:],
    ]
    assert compute_advantages.returns_of(made, H).tolist() == pytest.approx(wanted, abs=1e-15)
    h = replace(H, advantage="gae", gae_lambda=1.0)
    batch = compute_advantages.actor_batch(made, values(made), [(0.0,)] * 8, None, h)
    v = values(made).v.mean(0)
    assert batch.advantage.tolist() == pytest.approx([w - float(x) for w, x in zip(wanted, v, strict=True)], abs=1e-15)


def test_lambda_0_looks_one_turn_ahead_along_every_way() -> None:
    made = transitions.answers_of(TWO)
    v = values(made).v.mean(0).tolist()
    h = replace(H, advantage="gae", gae_lambda=0.0)
    got = compute_advantages.actor_batch(made, values(made), [(0.0,)] * 8, None, h).advantage.tolist()
    assert got[1] == pytest.approx(0.125 + 0.9 * (v[2] + v[3]) / 2 - v[1], abs=1e-15)
    assert got[3] == pytest.approx(0.75 - v[3], abs=1e-15)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_one_turn_is_reinforce_with_a_baseline(lam: float) -> None:
    """The advantage is reward minus expectation, whatever gamma and lambda, and the gradient follows from it."""
    rewards, expected = torch.tensor([[0.0, 0.25, 1.0], [0.1, 0.2, 0.3]], dtype=torch.float64)
    advantage = gae(rewards[:, None], expected[:, None], 0.9, lam)[:, 0]
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    logp, mask = logits.log_softmax(-1)[:, :1], torch.ones(3, 1, dtype=torch.bool)
    policy_loss(logp, token_weights(advantage), mask, len(mask)).backward()
    chosen = torch.nn.functional.one_hot(torch.zeros(3, dtype=torch.long), 5)
    wanted = -(rewards - expected)[:, None] * (chosen - logits.detach().softmax(-1)) / 3
    assert logits.grad is not None and torch.allclose(logits.grad, wanted, rtol=0, atol=1e-16)


def test_scores_alone_are_compared_turn_by_turn() -> None:
    made = transitions.answers_of(TWO)
    got = compute_advantages.actor_batch(made, None, [(0.0,)] * 8, None, replace(H, advantage="score")).advantage
    returns = compute_advantages.returns_of(made, H)
    assert float(got[0]) == pytest.approx(float(returns[0] - returns[4]))
    ends = returns[made.turn == 2]
    assert float(got[2]) == pytest.approx(float(ends[0] - ends[1:].mean()))


def test_later_answers_weigh_as_they_are_discounted_where_asked() -> None:
    made = transitions.answers_of(TWO)
    plain, return_logprobs = (
        compute_advantages.actor_batch(made, values(made), [(0.0,)] * 8, None, replace(H, discount_weight=on))
        for on in (False, True)
    )
    assert (return_logprobs.advantage / plain.advantage).tolist() == pytest.approx([1, 0.9, 0.81, 0.81] * 2)
    assert plain.beta.tolist() == [0.01] * 8


def test_the_first_answer_has_a_kl_of_its_own() -> None:
    made = transitions.answers_of(TWO)
    h = replace(H, kl=replace(H.kl, first=0.5, later=0.25))
    assert (
        compute_advantages.actor_batch(made, values(made), [(0.0,)] * 8, None, h).beta.tolist()
        == [0.5, 0.25, 0.25, 0.25] * 2
    )


@pytest.mark.parametrize(
    ("baseline", "wanted"),
    [
        ("loo", [-0.75, 0.75, -0.25, 0.25, 0.5, -0.5, 1.0, -1.0]),
        ("batch_mean", None),
        ("value", [0.15, 0.9, 0.15, 0.4, -0.6, -1.1, 0.4, -0.6]),
    ],
)
def test_hints_are_compared_as_asked(baseline: Any, wanted: list[float] | None) -> None:
    hints = transitions.hints_of(TWO)
    h = replace(H, guidance=GuidanceConfig(baseline=baseline))
    expected = torch.full((8,), 0.1, dtype=torch.float64) if baseline == "value" else None
    got = compute_advantages.guidance_batch(hints, expected, [(0.0,)] * 8, h).advantage
    pay = (hints.after - hints.before).reshape(-1)
    if wanted is None:
        wanted = [float(one - (pay.sum() - one) / 7) for one in pay]
    assert got.tolist() == pytest.approx(wanted, abs=1e-12)


def test_what_a_hint_is_paid_beside() -> None:
    told = [episode(1.0, (1.0, 1.0), hints=("Keep it", "it is 7, look again"))]
    h = HierarchicalConfig(guidance=GuidanceConfig(judging=0.5, leak=0.25, length=0.01))
    assert hint_rewards(transitions.hints_of(told), h.guidance)[0].tolist() == pytest.approx([0.5 - 0.02, -0.25 - 0.02])
    silent = [episode(0.0, (0.0, 0.0), hints=("sum is 11", "look again"))]
    assert hint_rewards(transitions.hints_of(silent), h.guidance)[0].tolist() == pytest.approx([-0.02, 0.5 - 0.02])


@pytest.mark.parametrize(
    ("hint", "verdict"),
    [
        ("Keep it", True),
        ("That is correct.", True),
        ("incorrect", False),
        ("not right", False),
        ("Look again", False),
        ("sum is 11", None),
        ("You were right, but now it is wrong", False),
        ("bright", None),
    ],
)
def test_a_verdict_is_what_is_said_last(hint: str, verdict: bool | None) -> None:
    assert transitions.verdict(hint) is verdict


@pytest.mark.parametrize(
    ("hint", "answer", "told"),
    [
        ("it is 7", "7", True),
        ("it is 7.", "7", True),
        ("it is 17", "7", False),
        ("7.5", "7", False),
        ("x7", "7", False),
        ("so New  York", "new york", True),
        (r"\frac{1}{2}", r"\boxed{\frac{1}{2}}", True),
        ("", "7", False),
    ],
)
def test_a_leak_is_the_answer_as_a_word_of_its_own(hint: str, answer: str, told: bool) -> None:
    assert transitions.leaks_answer(hint, answer) is told


def test_figures_of_what_was_played() -> None:
    figures = metrics.of_episodes(TWO)
    assert figures["acc/turn1"] == 0.5 and figures["acc/turn3"] == 0.75 and figures["delta"] == 0.25
    assert figures["wrong_to_right"] == 0.5 and figures["right_to_wrong"] == 0.0
    assert figures["reward/mean"] == pytest.approx(0.5625) and figures["reward/std"] == pytest.approx(0.369755)
    assert figures["same_answer"] == 1.0, "all texts are empty"
    assert figures["hint/tokens"] == 2 and figures["hint/pay"] == pytest.approx(0.0625)
    assert metrics.tokens(TWO) == 2 * (5 + 4 * 2)
    statistics = metrics.accuracy(TWO)
    assert statistics["right"] == [1, 1, 2] and statistics["wrong_to_right"] == 1 and statistics["problems"] == 2
