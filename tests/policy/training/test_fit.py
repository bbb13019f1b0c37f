"""Precision of training: bfloat16 for large models on CUDA."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from r2v.config import load
from r2v.policy.training.fit import arguments


@pytest.mark.parametrize(
    ("device", "count", "expected"), [("cuda", 101_000_000, True), ("cuda", 99_000_000, False), ("cpu", 10**9, False)]
)
def test_large_models_on_cuda_train_in_bfloat16(device: str, count: int, expected: bool, tmp_path: Path) -> None:
    weights = [torch.empty(count, device="meta")]
    model = SimpleNamespace(device=torch.device(device), parameters=lambda: weights)
    made = arguments(load(None).training.phase("bc"), tmp_path, 8, model, 0)
    assert (made["bf16"], made["gradient_checkpointing"], made["use_cpu"]) == (expected, expected, device == "cpu")
