"""Unsharded language model on one device, a base and its adapters, which several roles may share.

`ShardedModel` (FSDP2 or DeepSpeed) has the same interface for a model sharded over ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

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
