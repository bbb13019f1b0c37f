"""Sharded loading: one rank reads a model that several train as shards, the others make room for it.

    loaded = load_policy(policy, for_training=True, sharded=True)    # rank 0: weights on the CPU; others: room for them
    agree_on_dtypes(loaded.model)                                    # before a trainer counts or wraps the weights
    reference = reference_of(loaded.model)                           # FSDP2 shards of the same weights, frozen

Room is memory that is allocated and never touched: it occupies none, and has the addresses by which an optimizer
identifies its weights. FSDP2 then takes each weight from rank 0, shard by shard, so that a machine's memory holds the
model once and a GPU its own part and a layer. 4-bit weights are an exception: FSDP2 cannot move weights quantised on
another rank, so each rank quantises the model onto its own GPU, a matrix at a time, and keeps its part.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from r2v import distributed

T = TypeVar("T")


def room_for(source: Path | str) -> Any:
    """Return a model of the configuration at `source`, its weights without values, its few buffers with theirs."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.tie_weights()
    return _with_room(model)


def _with_room(model: Any) -> Any:
    """Return the model with untouched memory for each weight of the meta device; tied weights stay tied."""
    roomy: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight.is_meta:
                room = nn.Parameter(torch.empty_like(weight, device="cpu"), weight.requires_grad)
                module._parameters[name] = roomy.setdefault(id(weight), room)
    return model


def retyped_room(model: Any, dtype: torch.dtype) -> Any:
    """Return the room with another dtype of weights; tied weights stay tied, and no memory is touched."""
    for weight in model.parameters():
        if weight.dtype != dtype:
            weight.data = torch.empty_like(weight, dtype=dtype)
    return model


def from_rank0(value: T) -> T:
    """Return rank 0's value on every rank; all ranks must call. The value travels as JSON."""
    return cast(T, json.loads(distributed.exchange(b"" if distributed.rank() else json.dumps(value).encode())[0]))


def agree_on_dtypes(model: Any) -> None:
    """Give room the type that rank 0 read for each weight: a configuration may not name it. All ranks must call."""
    names = from_rank0({name: str(weight.dtype) for name, weight in model.named_parameters()})
    if distributed.rank():
        for name, weight in model.named_parameters():
            if str(weight.dtype) != names[name]:
                weight.data = torch.empty_like(weight, dtype=getattr(torch, names[name].removeprefix("torch.")))


def reference_of(model: Any) -> Any:
    """Return a frozen copy of a model, sharded over the ranks a layer at a time; all ranks must call. The weights are
    rank 0's; those of `room_for` have no values."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    weights = {} if distributed.rank() else model.state_dict()
    reference = _without_weights(model).eval().requires_grad_(False)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    layers = set(model._no_split_modules or ())
    for module in [module for module in reference.modules() if type(module).__name__ in layers]:
        fully_shard(module)
    fully_shard(reference)
    whole_from_rank0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(reference, weights, options=whole_from_rank0)
    device = next(reference.parameters()).device
    for name, buffer in buffers.items():
        owner, _, last = name.rpartition(".")
        reference.get_submodule(owner)._buffers[last] = buffer.to(device)
    reference.tie_weights()
    return reference


def _without_weights(model: Any) -> Any:
    """Return a copy on the meta device, without copying a weight."""
    memo: dict[int, Any] = {}
    for weight in model.parameters():
        memo[id(weight)] = nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)
    return copy.deepcopy(model, memo).to("meta")


@contextmanager
def whole_on(model: Any, device: torch.device) -> Iterator[None]:
    """Put rank 0's whole model on a device in the block, to measure it before it is sharded."""
    before = model.device
    model.to(device)
    try:
        yield
    finally:
        model.to(before)


def whole_weights(model: Any, trained_alone: bool) -> dict[str, Tensor]:
    """Return the full weights of a sharded model on rank 0's CPU, all or those trained; empty on the other ranks, which
    must call too."""
    parts = (
        {name: w for name, w in model.named_parameters() if w.requires_grad} if trained_alone else model.state_dict()
    )
    weights: dict[str, Tensor] = {}
    for name, part in parts.items():
        full = part.detach().full_tensor() if hasattr(part, "full_tensor") else part.detach()
        if distributed.rank() == 0:
            weights[name.replace("_checkpoint_wrapped_module.", "")] = full.cpu()
    return weights
