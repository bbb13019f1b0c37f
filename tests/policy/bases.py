"""Random base models of common families, saved as hub folders: nothing pretrained, nothing downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from r2v.policy.export import export
from r2v.policy.load import Loaded
from tests import tiny_models

_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "num_key_value_heads": 2},
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "phi3": {},
    "mistral": {"head_dim": 16},
}


def random_base(family: str, vocabulary: int, seed: int = 0) -> Any:
    """Return a random causal language model of two small layers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**_SHAPE, "vocab_size": vocabulary, **FAMILIES[family]})
    return AutoModelForCausalLM.from_config(config).eval()


def saved_base(family: str, folder: Path, seed: int = 0, vocabulary: int = 64) -> Path:
    """Save such a model in a folder with a tokenizer of whole words."""
    tokenizer = tiny_models.tokenizer()
    export(Loaded(model=random_base(family, vocabulary, seed), tokenizer=tokenizer, name=family), folder)
    return folder


def stirred(loaded: Loaded, size: float = 0.05) -> Loaded:
    """Return it with random adapters: fresh ones change nothing."""
    with torch.no_grad():
        for name, weight in loaded.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=size)
    return loaded
