"""Base model of the roles, and the trained adapters.

Every role of hierarchical training acts and learns in evaluation mode. Without dropout the reference equals the base
bit for bit, and the log-probability of a token is the same in training as when it was drawn: `policy.lora_dropout`
applies only to the pipeline's other trainings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from r2v import distributed
from r2v.config import PolicyConfig
from r2v.errors import UsageError
from r2v.hrl.algorithm.logprobs import has_autocast, set_autocast
from r2v.policy.load import Loaded, adapter_settings, load_policy
from r2v.policy.precision import use_float64_layers
from r2v.policy.sharded_loading import retyped_room
from r2v.randomness import seed_of
from r2v.storage.weights import ADAPTERS

SMALL = 5_000_000
"""Parameters below which a model is float64 on a CPU, where it costs little and makes results independent of
batching."""


def load_base(
    policy: PolicyConfig,
    weights: Path | None,
    device: str,
    *,
    typed_for: str | None = None,
    in_parts: bool = False,
    autocast: bool = True,
) -> Loaded:
    """Load the frozen base: `policy.model_name`, or the whole model or adapter (which is merged) in `weights`.
    `in_parts`: only rank 0 reads it, on the CPU, and the other ranks allocate it (`r2v.policy.sharded_loading`), for
    `ShardedModel` to distribute; all ranks must call.

    The dtype is `policy.dtype`; `auto` is float64 for small models and float32 for others on a CPU, float32 for small
    ones and bfloat16 for others on a GPU. `typed_for`: dtype as on that device, so that copies on several devices
    agree. Trained weights, all or adapters, are float32, and computed in bfloat16 by autocast on a model of that dtype,
    or in their own without `autocast`. Raises UsageError for settings that exclude each other.
    """
    _check(policy, weights, autocast)
    bits = policy.load_in_4bit if policy.lora_r > 0 else False
    loaded = load_policy(replace(policy, device=device, load_in_4bit=bits), weights, sharded=in_parts)
    adapted, model = hasattr(loaded.model, "peft_config"), loaded.model
    core = model.get_base_model() if adapted else model
    if getattr(core, "is_loaded_in_4bit", False):
        return loaded
    target, before = _precision(policy, core, typed_for or device), core.dtype
    if in_parts and distributed.rank():
        model = retyped_room(model.unload() if adapted else model, target)
    elif adapted:
        model = model.to(torch.promote_types(target, torch.float32)).merge_and_unload()
    model = model.to(target).eval().requires_grad_(False)
    if before != target:  # else `load_policy` has done it
        use_float64_layers(model)
    if autocast and _in_bfloat16(policy, core, typed_for or device):
        set_autocast(model)
    return replace(loaded, model=model)


def _check(policy: PolicyConfig, weights: Path | None, autocast: bool) -> None:
    policy.require_trainable()
    if policy.lora_r == 0 and policy.dtype == "bfloat16" and not autocast:
        raise UsageError(
            "policy.dtype=bfloat16: fully trained weights (policy.lora_r=0) that fsdp or zero3 share out are computed "
            "in float32; set policy.dtype=auto, hierarchical.shards=none or zero2, or train adapters"
        )
    if policy.load_in_4bit is True and weights is not None and (weights / ADAPTERS).exists():
        raise UsageError(
            f"policy.load_in_4bit=true: {weights} holds an adapter, which cannot be merged into 4-bit "
            "weights; set policy.load_in_4bit=false, or train bc with policy.lora_r=0"
        )


def _precision(policy: PolicyConfig, model: Any, device: str) -> torch.dtype:
    """Return the dtype of the weights. Trained ones are not bfloat16, in which steps of `hierarchical.lr` round to
    0."""
    if _in_bfloat16(policy, model, device):
        return torch.bfloat16 if policy.lora_r > 0 else torch.float32
    if policy.dtype != "auto":
        dtype: torch.dtype = getattr(torch, policy.dtype)
        return dtype
    return torch.float64 if device == "cpu" and _is_small(model) else torch.float32


def _in_bfloat16(policy: PolicyConfig, model: Any, device: str) -> bool:
    return policy.dtype == "bfloat16" or (policy.dtype == "auto" and device != "cpu" and not _is_small(model))


def _is_small(model: Any) -> bool:
    return bool(sum(tensor.numel() for tensor in model.parameters()) < SMALL)


def with_adapters(policy: PolicyConfig, model: Any, adapters: Mapping[str, str], seed: int) -> Any:
    """Return the model with new adapters: name -> role. Each is initialised from (seed, role), independent of
    others."""
    from peft import get_peft_model, prepare_model_for_kbit_training

    if getattr(model, "is_loaded_in_4bit", False):
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    for name, role in adapters.items():
        settings = adapter_settings(policy, dropout=0.0)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed_of(seed, "lora", role))
            if hasattr(model, "peft_config"):
                model.add_adapter(name, settings)
            else:
                model = get_peft_model(model, settings, adapter_name=name)
    for path, tensor in model.named_parameters():
        tensor.requires_grad_(any(f".{name}." in path for name in adapters))
    if has_autocast(model):
        set_autocast(model)
    return model.eval()
