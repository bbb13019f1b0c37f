"""Precision of training: bfloat16 and TF32 for large models on CUDA, and nothing of it left behind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from r2v.config import load
from r2v.policy.fit import arguments, tf32


@pytest.mark.parametrize(
    ("device", "count", "expected"), [("cuda", 101_000_000, True), ("cuda", 99_000_000, False), ("cpu", 10**9, False)]
)
def test_large_models_on_cuda_train_in_bfloat16(device: str, count: int, expected: bool, tmp_path: Path) -> None:
    weights = [torch.empty(count, device="meta")]
    model = SimpleNamespace(device=torch.device(device), parameters=lambda: weights)
    made = arguments(load(None).training.phase("bc"), tmp_path, 8, model, 0)
    assert (made["bf16"], made["gradient_checkpointing"], made["use_cpu"]) == (expected, expected, device == "cpu")


def test_tf32_lasts_as_long_as_the_training_and_is_left_alone_without_bfloat16() -> None:
    before = torch.get_float32_matmul_precision()
    with tf32(False):
        assert torch.get_float32_matmul_precision() == before
    with pytest.raises(RuntimeError, match="cut"), tf32(True):
        assert torch.get_float32_matmul_precision() == "high"
        raise RuntimeError("cut")
    assert torch.get_float32_matmul_precision() == before
