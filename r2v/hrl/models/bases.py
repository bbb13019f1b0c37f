"""Language models that several roles may share: a base, and the adapters that it puts on.

Every role of hierarchical training acts and learns in evaluation mode: there is no dropout, so the reference is the
base to the bit, and the log-probabilities of a drawn token are those that it was drawn with.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from r2v.config import PolicyConfig
from r2v.errors import UsageError
from r2v.policy.float64 import use_float64_layers
from r2v.policy.load import Loaded, load_policy
from r2v.randomness import seed_of
from r2v.storage.weights import ADAPTERS

ACTOR, GUIDANCE = "default", "guidance"
"""Adapters. The actor's has the name that an exported policy's has."""
SMALL = 5_000_000
"""Models with fewer parameters are float64 on a CPU: there it costs little, and cuts and company change no result."""


class Base:
    """A model that one role at a time uses, with the adapter it is to have on; None is the base as it is."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._lock = threading.RLock()
        self._on: str | None = ACTOR if hasattr(model, "peft_config") else None

    @contextmanager
    def wearing(self, adapter: str | None) -> Iterator[Any]:
        """The model with this adapter on, and nobody else's hands on it, until the block ends. A backward pass belongs
        into the block: it may run parts of the model again."""
        with self._lock:
            before = self._on
            self._put_on(adapter)
            try:
                yield self.model
            finally:
                self._put_on(before)

    def _put_on(self, adapter: str | None) -> None:
        if adapter == self._on:
            return
        trained = [tensor for tensor in self.model.parameters() if tensor.requires_grad]
        if adapter is None:
            self.model.base_model.disable_adapter_layers()
        else:
            if self._on is None:
                self.model.base_model.enable_adapter_layers()
            self.model.set_adapter(adapter)
        for tensor in trained:  # peft freezes whatever it takes off
            tensor.requires_grad_(True)
        self._on = adapter

    def trained(self, adapter: str | None) -> dict[str, nn.Parameter]:
        """What is learned, by names that hold for this role in every placement: an adapter's tensors, or all."""
        own = self.model.named_parameters()
        if adapter is None:
            return {name: tensor for name, tensor in own if tensor.requires_grad}
        return {name.replace(f".{adapter}.", "."): tensor for name, tensor in own if f".{adapter}." in name}


def load_base(policy: PolicyConfig, weights: Path | None, device: str, dtype: torch.dtype | None = None) -> Loaded:
    """The frozen base: `policy.model_name`, or what `weights` holds: a whole model, or an adapter, which is merged.

    `dtype` None: `policy.dtype`, and for `auto` float64 for small models and float32 for others on a CPU; on a GPU
    bfloat16 under adapters and float32 for small models and where all weights are trained.
    """
    _check(policy, weights)
    bits = policy.load_in_4bit if policy.lora_r > 0 else False
    loaded = load_policy(replace(policy, device=device, load_in_4bit=bits), weights)
    adapted, model = hasattr(loaded.model, "peft_config"), loaded.model
    core = model.get_base_model() if adapted else model
    if getattr(core, "is_loaded_in_4bit", False):
        return loaded
    wanted, before = dtype or _precision(policy, core, device), core.dtype
    if adapted:
        model = model.to(torch.promote_types(wanted, torch.float32)).merge_and_unload()
    model = model.to(wanted).eval().requires_grad_(False)
    if before != wanted:  # else `load_policy` has done it
        use_float64_layers(model)
    return replace(loaded, model=model)


def _check(policy: PolicyConfig, weights: Path | None) -> None:
    if policy.lora_dropout > 0:
        raise UsageError(
            f"policy.lora_dropout={policy.lora_dropout}: hierarchical training compares what was drawn "
            "with what is learned, token by token, without dropout; set it to 0"
        )
    if policy.lora_r == 0 and policy.load_in_4bit is True:
        raise UsageError(
            "policy.load_in_4bit=true: 4-bit weights cannot be trained themselves, policy.lora_r is 0; "
            "set policy.lora_r (16 is a start), or policy.load_in_4bit=false"
        )
    if policy.lora_r == 0 and policy.dtype == "bfloat16":
        raise UsageError(
            "policy.dtype=bfloat16: with policy.lora_r=0 all weights are trained, and steps as small as "
            "hierarchical.lr round to nothing in them; set float32 or auto, or train adapters"
        )
    if policy.load_in_4bit is True and weights is not None and (weights / ADAPTERS).exists():
        raise UsageError(
            f"policy.load_in_4bit=true: {weights} holds an adapter, which cannot be merged into 4-bit "
            "weights; set policy.load_in_4bit=false, or train bc with policy.lora_r=0"
        )


def _precision(policy: PolicyConfig, model: Any, device: str) -> torch.dtype:
    if policy.dtype != "auto":
        found: torch.dtype = getattr(torch, policy.dtype)
        return found
    small = sum(tensor.numel() for tensor in model.parameters()) < SMALL
    if device == "cpu":
        return torch.float64 if small else torch.float32
    return torch.bfloat16 if policy.lora_r > 0 and not small else torch.float32


def with_adapters(policy: PolicyConfig, model: Any, adapters: Mapping[str, str], seed: int) -> Any:
    """The model with fresh adapters, named, of roles: each is drawn from (seed, role), whatever else is there."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if getattr(model, "is_loaded_in_4bit", False):
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    for name, role in adapters.items():
        settings = LoraConfig(
            r=policy.lora_r,
            lora_alpha=policy.effective_lora_alpha,
            target_modules="all-linear",
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed_of(seed, "lora", role))
            if hasattr(model, "peft_config"):
                model.add_adapter(name, settings)
            else:
                model = get_peft_model(model, settings, adapter_name=name)
    for path, tensor in model.named_parameters():
        tensor.requires_grad_(any(f".{name}." in path for name in adapters))
    return model.eval()
