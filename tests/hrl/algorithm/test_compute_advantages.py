"""The actor's update over all possible episodes equals the gradient of its objective.

A random Llama says one of three tokens; an episode is a first answer, K hints of a fixed guidance, an answer to each.
All of them, each by its probability, go through `answers_of`, `actor_batch` and `policy_loss_fn`; the objective is
summed from the same model's probabilities and differentiated by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from r2v.config import GuidanceConfig, HierarchicalConfig, KLConfig
from r2v.hrl.algorithm.compute_advantages import actor_batch
from r2v.hrl.algorithm.critic import CriticValues
from r2v.hrl.algorithm.samples import AnswerBatch
from r2v.hrl.algorithm.training_batch import policy_loss_fn
from r2v.hrl.rollout.episode import GuidedEpisode, HintedAnswer, ScoredAnswer
from r2v.hrl.rollout.transitions import answers_of
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.types import Completion
from r2v.policy.precision import use_float64_layers
from tests.hrl.tabular_mdp import GAMMA, first_score, second_score

pytestmark = pytest.mark.numerical

WAYS, HINTS = 3, 2
GUIDE = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.875, 0.125]], dtype=torch.float64)
"""Probability of each hint after each first answer."""
R1, R2, PAID = first_score(), second_score(), (0.25, 1.0)
ALONE = KLConfig(first=0.0, later=0.0)
H = HierarchicalConfig(gamma=GAMMA, discount_weight=True, rewards=list(PAID), kl=ALONE)


def language_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=WAYS,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
    )
    model = LlamaForCausalLM(config).double().eval()
    use_float64_layers(model)
    return model


def log_table(model: Any) -> tuple[Tensor, Tensor]:
    """Return log pi of the first answer (A,) and of the second (A, G, B)."""
    first = model(torch.tensor([[0]])).logits[0, -1].log_softmax(-1)
    prompts = torch.tensor([[0, a, g] for a, g in product(range(WAYS), range(HINTS))])
    second = model(prompts).logits[:, -1].log_softmax(-1)
    return first, second.reshape(WAYS, HINTS, WAYS)


def scored(prompt: tuple[int, ...], token: int, logp: Tensor, score: Tensor, **more: Any) -> ScoredAnswer:
    said = Completion(
        prompt=prompt, tokens=(token,), logprobs=(float(logp),), ended=True, version=0, text=str(token), **more
    )
    return ScoredAnswer(answer=said, score=float(score))


def all_episodes(first: Tensor, second: Tensor, hints: int) -> tuple[list[GuidedEpisode], Tensor]:
    """Return every episode with K hints, and its probability."""
    episodes, chances = [], []
    problem = Problem(id="p", text="?", answer="")
    for a in range(WAYS):
        start = scored((0,), a, first[a], R1[a])
        for tried in product(range(HINTS), repeat=hints):
            for said in product(range(WAYS), repeat=hints):
                after = [scored((0, a, g), b, second[a, g, b], R2[a, g, b]) for g, b in zip(tried, said, strict=True)]
                group = tuple(HintedAnswer(hint=one.answer, after=one) for one in after)
                episodes.append(GuidedEpisode(problem=problem, turns=(start, after[0]), hints=(group,)))
                chance = first[a].exp()
                for g, b in zip(tried, said, strict=True):
                    chance = chance * GUIDE[a, g] * second[a, g, b].exp()
                chances.append(float(chance))
    return episodes, torch.tensor(chances, dtype=torch.float64)


def worths(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return Q1 (A,), V1 (), Q2 (A, G, B) and V2 (A, G) of a perfect critic."""
    q2 = PAID[1] * R2
    v2 = (second.exp() * q2).sum(-1)
    q1 = PAID[0] * R1 + GAMMA * (GUIDE * v2).sum(-1)
    return q1, (first.exp() * q1).sum(), q2, v2


def perfect(answers: AnswerBatch, first: Tensor, second: Tensor) -> CriticValues:
    q1, v1, q2, v2 = worths(first, second)
    q, v = [], []
    for one in answers.completions:
        token = one.tokens[0]
        if len(one.prompt) == 1:
            q.append(q1[token])
            v.append(v1)
        else:
            _, a, g = one.prompt
            q.append(q2[a, g, token])
            v.append(v2[a, g])
    both, floor = torch.stack(q), torch.stack(v)
    return CriticValues(q=torch.stack([both, both]), v=torch.stack([floor, floor]), floor=floor)


def gradient(model: Any, value: Tensor) -> Tensor:
    grads = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    parameters = model.parameters()
    return torch.cat([
        (torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(grads, parameters, strict=True)
    ])  # fmt: skip


def expected_update(model: Any, h: HierarchicalConfig, hints: int, reference: float = -1.0) -> tuple[Tensor, int]:
    """Return the negative gradient of the loss, each episode by its probability, times the denominator of one; and the
    rows."""
    with torch.no_grad():
        first, second = log_table(model)
        episodes, chances = all_episodes(first, second, hints)
        answers = answers_of(episodes)
        known = perfect(answers, first, second) if h.has_critic else None
        batch = actor_batch(answers, known, [(reference,)] * len(answers.completions), None, h)
    assert batch.weight is not None
    rows = len(answers.completions)
    chance = chances.repeat_interleave(1 + hints)  # every episode has one first answer and K last ones
    share = batch.weight.sum() / len(episodes)
    # episodes are weighted by probability, and the sum over episodes is no mean
    batch = replace(batch, advantage=batch.advantage * chance, beta=batch.beta * chance)
    loss, _ = policy_loss_fn(model, "cpu", answers.completions, batch, h)(range(rows))
    return -gradient(model, loss) * len(episodes) * float(share), rows


def objective(model: Any, weight: float = GAMMA, beta: float = 0.0, reference: float = -1.0) -> Tensor:
    """Return J = E[rho_1 + gamma rho_2] - beta E[KL of both turns], differentiated where an answer is chosen; `weight`
    is the factor of the second turn's part there."""
    first, second = log_table(model)
    fixed_first, fixed_second = first.detach(), second.detach()
    q1, _, q2, _ = worths(fixed_first, fixed_second)
    kl = (second.exp() * (second - reference)).sum(-1)
    turn1 = (first.exp() * q1).sum() - beta * (first.exp() * (first - reference)).sum()
    later = (second.exp() * q2).sum(-1) * weight - beta * kl
    return turn1 + (fixed_first.exp()[:, None] * GUIDE * later).sum()


def return_of(model: Any) -> Tensor:
    """Return the discounted return itself, with no value held fixed."""
    first, second = log_table(model)
    q1, _, _, _ = worths(first, second)
    return (first.exp() * q1).sum()


def close(ours: Tensor, theirs: Tensor) -> None:
    assert float(theirs.norm()) > 1e-3
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-12


@pytest.mark.parametrize("hints", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ["reinforce", "ppo"])
def test_the_update_is_the_gradient_of_the_return_however_many_hints_there_are(hints: int, algorithm: Any) -> None:
    model = language_model()
    ours, rows = expected_update(model, replace(H, algorithm=algorithm), hints)
    assert rows == WAYS * (HINTS * WAYS) ** hints * (1 + hints)
    close(ours, gradient(model, return_of(model)))
    close(ours, gradient(model, objective(model)))


@pytest.mark.parametrize("hints", [1, 3])
def test_without_discount_weight_both_turns_count_alike(hints: int) -> None:
    """As documented: the second turn's part then weighs 1/gamma too much, and no more for more hints."""
    model = language_model(1)
    ours, _ = expected_update(model, replace(H, discount_weight=False), hints)
    close(ours, gradient(model, objective(model, weight=1.0)))


@pytest.mark.parametrize("hints", [1, 2, 3])
def test_a_penalty_weighs_the_same_however_many_hints_there_are(hints: int) -> None:
    model = language_model(2)
    h = replace(H, kl=KLConfig(first=0.3, later=0.3))
    ours, _ = expected_update(model, h, hints, reference=-1.3)
    close(ours, gradient(model, objective(model, beta=0.3, reference=-1.3)))


def expected_of_pairs(
    model: Any, h: HierarchicalConfig, drawn: Callable[[Tensor], Tensor] | None = None, *, cap: float = 100.0
) -> Tensor:
    """Return the negative gradient of the expected loss of pairs of single answers to one problem; an engine draws by
    `drawn`."""
    with torch.no_grad():
        first, _ = log_table(model)
    own = first if drawn is None else drawn(first)
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for pair in product(range(WAYS), repeat=2):
        more = [{} if drawn is None else {"engine_logprobs": (float(own[a]),)} for a in pair]
        turns = [scored((0,), a, first[a], R1[a] + 0.3 * a, **with_) for a, with_ in zip(pair, more, strict=True)]
        problem = Problem(id="p", text="?", answer="")
        answers = answers_of([GuidedEpisode(problem=problem, turns=(one,), hints=()) for one in turns])
        batch = actor_batch(answers, None, [(-1.3,)] * 2, None, h)
        loss, _ = policy_loss_fn(model, "cpu", answers.completions, batch, h, cap=cap)(range(2))
        total -= float(own[list(pair)].sum().exp()) * gradient(model, loss)
    return total


ONE_TURN = HierarchicalConfig(
    turns=1, rewards=[1.0], guidance=GuidanceConfig(enabled=False), advantage="rloo", group=2, kl=ALONE
)


def value_of_first(model: Any, entropy: float = 0.0, beta: float = 0.0) -> Tensor:
    first, _ = log_table(model)
    gain = R1 + 0.3 * torch.arange(3, dtype=torch.float64) - entropy * first - beta * (first + 1.3)
    return (first.exp() * gain.detach()).sum()


def test_leaving_one_out_of_a_group_is_unbiased() -> None:
    model = language_model(3)
    close(expected_of_pairs(model, ONE_TURN), gradient(model, value_of_first(model)))


def test_the_entropys_bonus_is_the_entropys_gradient() -> None:
    model = language_model(3)
    h = replace(ONE_TURN, entropy=0.2)
    close(expected_of_pairs(model, h), gradient(model, value_of_first(model, entropy=0.2)))


def test_what_an_engine_drew_is_weighed_as_if_the_policy_had() -> None:
    """The engine's own distribution differs from the policy's; without the ratio the gradient would differ too."""
    model = language_model(3)
    h = replace(ONE_TURN, entropy=0.2, kl=KLConfig(first=0.1))

    def engine(logp: Tensor) -> Tensor:
        return (0.6 * logp + torch.tensor([0.2, 0.0, -0.1])).log_softmax(-1)

    wanted = gradient(model, value_of_first(model, entropy=0.2, beta=0.1))
    # a baseline from another draw adds no bias, but that draw is the engine's too
    ours = expected_of_pairs(model, h, engine)
    first, _ = log_table(model)
    assert float((ours - wanted).norm() / wanted.norm()) < 1e-12
    capped = expected_of_pairs(model, h, engine, cap=1.0)
    assert float((capped - wanted).norm() / wanted.norm()) > 1e-3 and first.requires_grad
