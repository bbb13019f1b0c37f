"""Divergences: exact, estimated from draws, and the optima to which their gradients lead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from r2v.hrl.algorithm import kl
from r2v.hrl.algorithm.losses import policy_loss, token_weights
from tests.hrl.tabular_mdp import exact_kl

pytestmark = pytest.mark.numerical

BETA, REWARD, REFERENCE = 0.5, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
OPTIMUM, SOFT_VALUE = (0.786986, 0.106507, 0.106507), 0.570466
ALL = torch.ones(3, 1, dtype=torch.bool)


def logits(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exactly(theta: Tensor) -> Tensor:
    return -(theta.softmax(-1) * REWARD).sum() + BETA * exact_kl(theta, REFERENCE)


def by_reward(theta: Tensor) -> Tensor:
    """Return the loss of all three actions as a batch, weighted by probability; the penalty is subtracted from the
    reward."""
    logp, probability = theta.log_softmax(-1)[:, None], theta.detach().softmax(-1)[:, None]
    k1 = kl.k1(logp, REFERENCE.log_softmax(-1)[:, None])
    return policy_loss(logp, token_weights(REWARD, penalty=BETA * k1) * probability, ALL, 1.0)


def by_loss(theta: Tensor, shown: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
    """Return the same loss with the penalty in the loss."""
    logp, probability = theta.log_softmax(-1)[:, None], theta.detach().softmax(-1)[:, None]
    reference = REFERENCE.log_softmax(-1)[:, None]
    each = (
        [kl.penalty(logp[i : i + 1], reference[i : i + 1], ALL[:1], 1.0) for i in range(3)]
        if shown is None
        else list(shown(logp, reference).squeeze(-1))
    )
    return (
        policy_loss(logp, token_weights(REWARD) * probability, ALL, 1.0)
        + BETA * (torch.stack(each) * probability[:, 0]).sum()
    )


def descend(loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the logits after 2,000 gradient steps of 1."""
    theta = logits(0, 3).requires_grad_()
    for _ in range(2000):
        (gradient,) = torch.autograd.grad(loss(theta), theta)
        theta = (theta - gradient).detach().requires_grad_()
    return theta.detach()


@pytest.mark.parametrize("loss", [exactly, by_reward, by_loss])
def test_every_penalty_leads_to_the_regularised_optimum(loss: Callable[[Tensor], Tensor]) -> None:
    theta = descend(loss)
    assert theta.softmax(-1).tolist() == pytest.approx(OPTIMUM, abs=1e-6)
    assert -float(exactly(theta)) == pytest.approx(SOFT_VALUE, abs=1e-6)


def test_k3_in_the_loss_would_lead_elsewhere() -> None:
    """The reason why `penalty` descends k2: k3 alone ends at the optimum of KL(ref || pi), pi_1 (1 - rbar) = beta (pi_1
    - 1/3)."""
    reached = descend(lambda theta: by_loss(theta, kl.k3)).softmax(-1)
    assert abs(float(reached[0]) - OPTIMUM[0]) > 0.02
    first = float(reached[0])
    assert first * (1 - first) == pytest.approx(BETA * (first - 1 / 3), abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_tokens_average_to_the_exact_divergence(seed: int) -> None:
    """By enumeration: the values of k1 and k3, the gradients of k2 and of `penalty`."""
    theta, reference = logits(seed, 7).requires_grad_(), logits(seed + 100, 7)
    logp, logref, probability = theta.log_softmax(-1), reference.log_softmax(-1), theta.detach().softmax(-1)
    divergence = exact_kl(theta, reference)
    for estimate in (kl.k1, kl.k3):
        assert (probability * estimate(logp, logref)).sum().item() == pytest.approx(divergence.item(), abs=1e-14)
    forward = torch.autograd.grad(divergence, theta, retain_graph=True)[0]
    backward = torch.autograd.grad(exact_kl(reference, theta), theta)[0]

    def gradient(drawn: Tensor) -> Tensor:
        return torch.autograd.grad((probability * drawn).sum(), theta, retain_graph=True)[0]

    torch.testing.assert_close(gradient(kl.k2(logp, logref)), forward, rtol=0, atol=1e-14)
    torch.testing.assert_close(gradient(kl.k3(logp, logref)), backward, rtol=0, atol=1e-14)
    assert float(gradient(kl.k1(logp, logref)).abs().max()) < 1e-15 < 1e-3 < float((forward - backward).abs().max())


def test_a_penalty_shows_k3_and_forgets_what_is_not_marked() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    logp, logref = -logits(1, 2, 3).abs(), -logits(2, 2, 3).abs()
    shown = kl.penalty(logp, logref, mask, 3)
    assert float(shown) == pytest.approx(float(kl.k3(logp, logref)[mask].mean()))
    spoiled = torch.where(mask, logp.detach(), float("nan")).requires_grad_()
    got = kl.penalty(spoiled, torch.where(mask, logref, float("-inf")), mask, 3)
    got.backward()
    assert got.item() == shown.item()
    torch.testing.assert_close(spoiled.grad, torch.where(mask, (logp - logref) / 3, 0.0), rtol=0, atol=1e-16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_never_negative_and_equals_nothing_for_equal_models(dtype: torch.dtype) -> None:
    near = torch.logspace(-12, 1, 4001, dtype=torch.float64).to(dtype)
    for difference in (near, -near):
        assert bool((kl.k3(difference, torch.zeros_like(difference)) >= 0).all())
    same = logits(3, 5, 11).to(dtype)
    assert exact_kl(same, same.clone()).eq(0.0).all()
    assert kl.k3(same, same.clone()).eq(0.0).all() and kl.k1(same, same.clone()).eq(0.0).all()
