"""The learning-rate schedule of both policies: a pure function of the iteration, so a resumed run needs no state."""

from __future__ import annotations

import math

from r2v.config import HierarchicalConfig


def rate_share(h: HierarchicalConfig, iteration: int) -> float:
    """The share in (0, 1] of the learning rate in this iteration, counted from 0.

    The critic's warm-up does not count. It rises linearly over `lr_warmup` iterations, (n + 1) / (lr_warmup + 1) in the
    n-th, and is 1 after them; then it stays, or falls to the end, in the last iteration to just above 0.
    """
    first = h.critic.warmup if h.has_critic else 0
    done, whole = iteration - first, h.iterations - first
    if done < h.lr_warmup:
        return max(done + 1, 1) / (h.lr_warmup + 1)
    if h.lr_schedule == "constant":
        return 1.0
    left = 1 - (done - h.lr_warmup) / max(1, whole - h.lr_warmup)
    return left if h.lr_schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
