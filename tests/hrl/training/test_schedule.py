"""Learning rates by iteration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2v.config import CriticConfig, HierarchicalConfig
from r2v.hrl.training.schedule import rate_share

H = HierarchicalConfig(iterations=12, lr_warmup=3, critic=CriticConfig(warmup=4))


def test_the_rate_rises_after_the_critics_warm_up_and_then_stays() -> None:
    shares = [rate_share(H, iteration) for iteration in range(12)]
    assert shares == [0.25] * 5 + [0.5, 0.75, 1.0] + [1.0] * 4
    alone = replace(H, advantage="grpo", group=2)
    assert [rate_share(alone, iteration) for iteration in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert all(rate_share(HierarchicalConfig(), iteration) == 1 for iteration in range(100))


def test_it_falls_to_nothing_at_the_end_but_never_before() -> None:
    falls = replace(H, lr_schedule="linear")
    assert [rate_share(falls, iteration) for iteration in range(7, 12)] == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])
    cosine = [rate_share(replace(H, lr_schedule="cosine"), iteration) for iteration in range(7, 12)]
    assert cosine[0] == 1 and cosine == sorted(cosine, reverse=True) and 0 < cosine[-1] < 0.1
    assert cosine[2] == pytest.approx(0.6545, abs=1e-4)
