"""A policy's update by its parts: denominators, clipping, and the weight of the KL."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from r2v.config import HierarchicalConfig, KLConfig
from r2v.errors import UsageError
from r2v.hrl.algorithm import kl
from r2v.hrl.algorithm.logprobs import completion_logprobs, pad_sequences
from r2v.hrl.algorithm.training_batch import (
    POLICY_STATISTICS,
    TokenBaseline,
    TrainingBatch,
    batch_logprobs,
    pad_rows,
    policy_loss_fn,
    scatter_to_tokens,
    sorted_by_length,
)
from r2v.hrl.training.optimizer_step import Network, optimizer_step

from .. import trainers
from ..ranks_training import batch, said

pytestmark = pytest.mark.numerical

SAID = said()
EVERY = list(range(len(SAID)))


def batches(model: torch.nn.Module) -> TrainingBatch:
    """Return an on-policy batch: the behaviour is the model's own."""
    own = pad_rows(batch_logprobs(model, "cpu", SAID, 3))
    return replace(batch(SAID), behaviour=own, reference=own - torch.linspace(0, 0.3, own.shape[1]).double())


def gradient(h: HierarchicalConfig, known: TrainingBatch, micro_batch_size: int = 8) -> tuple[float, Tensor]:
    """Return the gradient of the loss of all rows, in micro-batches."""
    model = trainers.language_model()
    part, loss = policy_loss_fn(model, "cpu", SAID, known, h), 0.0
    for start in range(0, len(SAID), micro_batch_size):
        some, _ = part(EVERY[start : start + micro_batch_size])
        some.backward()  # type: ignore[no-untyped-call]
        loss += some.item()
    return loss, torch.cat([one.grad.reshape(-1) for one in model.parameters() if one.grad is not None])


@pytest.mark.parametrize(
    "h",
    [
        HierarchicalConfig(),
        HierarchicalConfig(per="token"),
        HierarchicalConfig(algorithm="ppo", updates=2),
        HierarchicalConfig(kl=KLConfig(mode="reward")),
    ],
    ids=["sequence", "token", "ppo", "reward"],
)
def test_one_by_one_is_all_at_once(h: HierarchicalConfig) -> None:
    known = batches(trainers.language_model())
    (one, slowly), (other, at_once) = gradient(h, known, 1), gradient(h, known, 8)
    assert one == pytest.approx(other, abs=1e-12)
    assert float((slowly - at_once).abs().max()) < 1e-12 < 1e-4 < float(at_once.abs().max())


def test_at_the_first_step_ppo_is_reinforce() -> None:
    known = batches(trainers.language_model())
    _, plain = gradient(HierarchicalConfig(), known)
    _, clipped = gradient(HierarchicalConfig(algorithm="ppo"), known)
    assert float((plain - clipped).abs().max()) < 1e-12


def test_each_utterance_has_the_kl_of_its_turn() -> None:
    """In the loss: the gradient of k2 times its own weight, added to REINFORCE's."""
    model = trainers.language_model()
    known = replace(batches(model), beta=torch.tensor([0.5, 0.25] * 4, dtype=torch.float64))
    _, plain = gradient(HierarchicalConfig(), replace(known, beta=torch.zeros(8, dtype=torch.float64)))
    _, both = gradient(HierarchicalConfig(), known)
    rows = pad_sequences([one.prompt for one in SAID], [one.tokens for one in SAID])
    logp = completion_logprobs(model, rows)
    apart = kl.k2(logp, scatter_to_tokens(known.reference, rows, logp)) * rows.completion * known.beta[:, None]
    (apart.sum() / 8).backward()  # type: ignore[no-untyped-call]
    wanted = torch.cat([one.grad.reshape(-1) for one in model.parameters() if one.grad is not None])
    assert float((both - plain - wanted).abs().max()) < 1e-12 < 1e-3 < float(wanted.abs().max())


def test_the_kl_in_the_reward_is_taken_off_each_token() -> None:
    known = batches(trainers.language_model())
    _, got = gradient(HierarchicalConfig(kl=KLConfig(mode="reward")), known)
    taken = replace(known, baseline=known.beta[:, None] * (known.behaviour - known.reference))
    _, wanted = gradient(
        HierarchicalConfig(kl=KLConfig(first=0, later=0)), replace(taken, beta=torch.zeros(8, dtype=torch.float64))
    )
    assert float((got - wanted).abs().max()) < 1e-14


def test_what_is_counted_is_over_tokens() -> None:
    model = trainers.language_model()
    known = batches(model)
    _, statistics = policy_loss_fn(model, "cpu", SAID, known, HierarchicalConfig())(EVERY)
    apart, spread_, clipped, tokens = statistics.tolist()
    assert tokens == sum(len(one.tokens) for one in SAID) and clipped == 0
    assert spread_ == pytest.approx(-float(known.behaviour.sum()))
    mask = known.behaviour != 0
    assert apart == pytest.approx(float(kl.k3(known.behaviour, known.reference)[mask].sum()))
    far = replace(known, behaviour=known.behaviour - 1)
    assert policy_loss_fn(model, "cpu", SAID, far, HierarchicalConfig())(EVERY)[1][2] == tokens


def test_a_gradient_is_clipped_as_a_whole_and_told_as_it_was() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    network = Network("actor", weights, lr=0.1, clip=1.0, micro_batch_size=1, setting="hierarchical.lr")
    network.optimizer = torch.optim.SGD(weights, lr=1.0)  # type: ignore[assignment]
    stepped = optimizer_step(
        network,
        [0, 1],
        lambda chosen: ((weights[0] * 1.5).sum() + (weights[1] * 2**0.5 / 2).sum() * 1.0, torch.ones(2)),
        2,
    )
    assert stepped.norm == pytest.approx((9 + 9 + 2) ** 0.5) and stepped.statistics == (2.0, 2.0)
    moved = torch.cat([one.detach() for one in weights])
    assert float(moved.norm()) == pytest.approx(1.0, abs=1e-5)
    assert float(moved[0] / moved[2]) == pytest.approx(3 / 2**0.5)
    assert all(one.grad is None for one in weights)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_steps_nothing(bad: float) -> None:
    """The loss itself can be finite: the square root of 0 has no slope."""
    weight = torch.nn.Parameter(torch.ones(1))
    network = Network("guidance", [weight], lr=0.1, clip=1.0, micro_batch_size=1, setting="hierarchical.guidance_lr")
    network.optimizer.zero_grad()
    optimizer_step(network, [0], lambda chosen: (weight.sum(), torch.zeros(0)))
    before, state = weight.detach().clone(), {n: v.clone() for n, v in network.optimizer.state[weight].items()}

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x * 1.0

        @staticmethod
        def backward(ctx: object, upstream: Tensor) -> Tensor:  # type: ignore[override]
            return upstream * bad

    with pytest.raises(UsageError, match=r"guidance: its loss is 0\.9.* norm (nan|inf).*hierarchical\.guidance_lr"):
        optimizer_step(network, [0], lambda chosen: (Broken.apply(weight).sum(), torch.zeros(0)))
    assert torch.equal(weight.detach(), before) and weight.grad is None
    assert all(torch.equal(value, state[name]) for name, value in network.optimizer.state[weight].items())


def test_a_token_baseline_learns_what_is_to_be_expected_and_moves_no_policy() -> None:
    """All advantages are equal: soon the baseline expects that everywhere."""
    model, advantage = trainers.language_model(), torch.full((8,), 0.7, dtype=torch.float64)
    baseline = TokenBaseline(16, next(model.parameters()))
    network = Network("token baseline", baseline.parameters(), lr=0.05, clip=9.0, micro_batch_size=3, setting="x")
    before = [one.detach().clone() for one in model.parameters()]
    part = baseline.loss_fn(model, "cpu", SAID, advantage, "token")
    first, *_, last = [optimizer_step(network, EVERY, part).loss for _ in range(120)]
    assert first == pytest.approx(0.49) and last < 0.01
    assert all(torch.equal(one, then) for one, then in zip(model.parameters(), before, strict=True))
    assert all(one.grad is None for one in model.parameters())
    expected = baseline.of(model, "cpu", SAID, 3)
    assert [len(row) for row in expected] == [len(one.tokens) for one in SAID]
    assert max(abs(value - 0.7) for row in expected for value in row) < 0.5


def test_rows_go_by_length_and_come_back_in_order() -> None:
    model = trainers.language_model()
    lengths = [len(SAID[i].prompt) + len(SAID[i].tokens) for i in sorted_by_length(SAID, EVERY)]
    assert lengths == sorted(lengths)
    one, other = batch_logprobs(model, "cpu", SAID, 1), batch_logprobs(model, "cpu", SAID, 5)
    assert [len(row) for row in one] == [len(each.tokens) for each in SAID]
    assert max(abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)) < 1e-12


def test_an_update_counts_figures_over_micro_batches() -> None:
    model = trainers.language_model()
    network = Network("actor", model.parameters(), lr=1e-3, clip=1.0, micro_batch_size=3, setting="hierarchical.lr")
    stepped = optimizer_step(
        network, EVERY, policy_loss_fn(model, "cpu", SAID, batches(model), HierarchicalConfig()), POLICY_STATISTICS
    )
    assert stepped.statistics[3] == sum(len(one.tokens) for one in SAID)


def test_the_fused_optimizer_makes_the_same_steps() -> None:
    def stepped(fused: bool) -> Tensor:
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 9, dtype=torch.float64))
        network = Network("actor", [weight], lr=0.1, clip=1.0, micro_batch_size=1, setting="x", fused=fused)
        assert bool(network.optimizer.defaults["fused"]) is fused
        for share in (1.0, 0.5):
            network.set_rate(share)
            optimizer_step(network, [0, 1], lambda chosen: ((weight**2).sum() * len(chosen), torch.ones(0)))
        return weight.detach()

    torch.testing.assert_close(stepped(True), stepped(False), rtol=1e-12, atol=1e-12)
    assert not torch.equal(stepped(True), torch.linspace(-1, 1, 9, dtype=torch.float64))
