"""Known answers of facts/batches.md A5."""

from __future__ import annotations

import pytest

from r2v.game.statistics.power import detectable, interactions_needed, rogan_gladen


def test_interactions_needed() -> None:
    assert interactions_needed(0.10) == 392
    assert interactions_needed(0.25) == 63


def test_detectable_is_its_inverse() -> None:
    assert detectable(392) == pytest.approx(0.10, abs=1e-3)
    assert interactions_needed(detectable(1000)) == 1000


def test_rogan_gladen() -> None:
    assert rogan_gladen(0.3, 0.9, 0.95) == pytest.approx((0.3 + 0.95 - 1) / (0.9 + 0.95 - 1))
    assert rogan_gladen(0.3, 1.0, 1.0) == pytest.approx(0.3)
    assert rogan_gladen(0.01, 0.9, 0.95) == 0.0, "not below nothing"
    assert rogan_gladen(0.3, 0.5, 0.5) is None
