"""Precision of float32 products: nothing of a training's is left behind."""

from __future__ import annotations

import pytest
import torch

from r2v.policy.tf32 import tf32


def test_tf32_lasts_as_long_as_the_training_and_is_left_alone_where_it_is_not_wanted() -> None:
    before = torch.get_float32_matmul_precision()
    with tf32(False):
        assert torch.get_float32_matmul_precision() == before
    with pytest.raises(RuntimeError, match="cut"), tf32(True):
        assert torch.get_float32_matmul_precision() == "high"
        raise RuntimeError("cut")
    assert torch.get_float32_matmul_precision() == before
