"""KL divergence of a policy from its reference, estimated from drawn tokens.

With d = log pi(y) - log ref(y) of a drawn token, k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d (joschu.net/blog/kl-approx).
k1 and k3 both average to KL(pi || ref), and k3 is never negative: k3 is reported. Their gradients differ, because the
draws themselves depend on pi: averaged over draws of pi, the gradient of k1 is 0, that of k3 is the one of KL(ref ||
pi), and only that of k2 is the one of KL(pi || ref). A penalty in the loss (`penalty`) therefore has the value of k3
and the gradient of k2; a penalty subtracted from the reward is k1 (`losses.token_weights`).
"""

from __future__ import annotations

import torch
from torch import Tensor


def k1(logp: Tensor, reference: Tensor) -> Tensor:
    """Return log pi - log ref of drawn tokens."""
    return logp - reference


def k2(logp: Tensor, reference: Tensor) -> Tensor:
    """Return (log pi - log ref)^2 / 2 of drawn tokens."""
    return k1(logp, reference).square() / 2


def k3(logp: Tensor, reference: Tensor) -> Tensor:
    """Return exp(-k1) - 1 + k1 >= 0 of drawn tokens."""
    difference = k1(logp, reference)
    return torch.expm1(-difference) + difference


def penalty(
    logp: Tensor, reference: Tensor, mask: Tensor, denominator: Tensor | float, weights: Tensor | float = 1.0
) -> Tensor:
    """Return the sum of k3 over marked tokens, divided by `denominator`, with the gradient of k2: a penalty in a loss.

    `logp`, `reference` and `mask` are (N, T). `weights`, broadcast to (N, T), multiply each token's part: the
    coefficient beta, and importance ratios (`losses.importance`) if another policy drew the tokens.
    """
    logp, reference = logp.masked_fill(~mask, 0.0), reference.detach().masked_fill(~mask, 0.0)
    descended = k2(logp, reference)
    shown = k3(logp.detach(), reference)
    return ((shown + descended - descended.detach()) * weights).sum() / denominator


def negative_entropy(logp: Tensor, mask: Tensor, denominator: Tensor | float, weights: Tensor | float = 1.0) -> Tensor:
    """Return the sum of log pi over marked tokens, divided by `denominator`: an estimate of the negative entropy, with
    the gradient of (log pi)^2 / 2, whose mean over draws of pi is the right one. Arguments as in `penalty`."""
    logp = logp.masked_fill(~mask, 0.0)
    descended = logp.square() / 2
    return ((logp.detach() + descended - descended.detach()) * weights).sum() / denominator
