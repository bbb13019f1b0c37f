"""Unsharded language model on one device, a base and its adapters, which several roles may share.

`ShardedModel` (FSDP2 or DeepSpeed) has the same interface for a model sharded over ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear

ACTOR, GUIDANCE = "default", "guidance"
"""Names of the adapters. The actor's is that of an exported policy."""


class BaseModel:
    """Model that one role at a time uses, with its adapter active; None is the base without adapters."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._lock = threading.RLock()
        self._active: str | None = ACTOR if hasattr(model, "peft_config") else None

    @contextmanager
    def use_adapter(self, adapter: str | None) -> Iterator[Any]:
        """Yield the model with this adapter active, locked against other threads until the block ends. The backward
        pass belongs into the block, because gradient checkpointing runs layers of the model again."""
        with self._lock:
            before = self._active
            self._activate(adapter)
            try:
                yield self.model
            finally:
                self._activate(before)

    def _activate(self, adapter: str | None) -> None:
        if adapter == self._active:
            return
        trained = [tensor for tensor in self.model.parameters() if tensor.requires_grad]
        if adapter is None:
            self.model.base_model.disable_adapter_layers()
        else:
            if self._active is None:
                self.model.base_model.enable_adapter_layers()
            self.model.set_adapter(adapter)
        for tensor in trained:  # peft freezes every adapter that it deactivates
            tensor.requires_grad_(True)
        self._active = adapter

    def trained(self, adapter: str | None) -> dict[str, nn.Parameter]:
        """Return the trained parameters, an adapter's or all, by names that do not depend on the placement."""
        named = self.model.named_parameters()
        if adapter is None:
            return {name: tensor for name, tensor in named if tensor.requires_grad}
        return {name.replace(f".{adapter}.", "."): tensor for name, tensor in named if f".{adapter}." in name}


@contextmanager
def fused_adapters(model: Any) -> Iterator[None]:
    """Compute the active adapters with two operations a layer in the block, in the type of the layer's weights. The
    weights must not change in it, and there is no gradient.

    peft's own pass takes six operations and half of a decoded token's time, which are launches on a GPU.
    """
    from peft.tuners.lora import Linear

    layers = [layer for layer in model.modules() if type(layer) is Linear and not layer.disable_adapters]
    for layer in layers:
        (adapter,), base = layer.active_adapters, layer.base_layer
        dtype = base.weight.dtype
        down = layer.lora_A[adapter].weight.detach().to(dtype)
        up = (layer.lora_B[adapter].weight.detach() * layer.scaling[adapter]).to(dtype).T
        layer.forward = partial(_adapted, base, down, up)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _adapted(base: nn.Module, down: Tensor, up: Tensor, states: Tensor) -> Tensor:
    """Return a layer's output plus its adapter's, for states (..., in)."""
    output: Tensor = base(states)
    output.flatten(0, -2).addmm_(linear(states, down).flatten(0, -2), up)
    return output
