"""Transformers KV caches for decoding: several prefills joined into one batch, and growth in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, LinearAttentionLayer

ROOM = 32
"""Tokens of spare capacity: about a reply of the bundled student."""


class GrowingKVCache(DynamicLayer):  # type: ignore[misc]
    """Attention states (B, H, T, D) with spare capacity (uninitialized), so that tokens are written in place;
    DynamicLayer copies all states for every token."""

    def __init__(self, keys: Tensor, values: Tensor, length: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self._set(keys, values, length)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H, t, D); return all of both."""
        begin = self.keys.shape[2]
        end = begin + key_states.shape[2]
        keys, values = self._buffers
        if end > keys.shape[2]:
            keys, values = (stacked([states], begin, end - begin + ROOM) for states in (self.keys, self.values))
        keys[:, :, begin:end], values[:, :, begin:end] = key_states, value_states
        self._set(keys, values, end)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, in this order."""
        keys, values = (buffer.index_select(0, beam_idx) for buffer in self._buffers)
        self._set(keys, values, self.keys.shape[2])

    def _set(self, keys: Tensor, values: Tensor, length: int) -> None:
        self._buffers = keys, values
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]


def joinable(model: Any) -> bool:
    """True if separate prefills can be joined into one batch, which sliding windows prevent."""
    layers = DynamicCache(config=model.config).layers
    return all(type(layer) in (DynamicLayer, LinearAttentionLayer) for layer in layers)


def join(caches: Sequence[Any], width: int) -> Any:
    """Return the rows of all caches in one, attention states padded with zeros on the left to `width` tokens. Consumes
    the caches layer by layer, so that a GPU never holds all states twice. Only for `joinable` models."""
    whole = caches[0]
    for i, (layer, *others) in enumerate(zip(*(cache.layers for cache in caches), strict=True)):
        if isinstance(layer, DynamicLayer):
            if others or not isinstance(layer, GrowingKVCache):
                whole.layers[i] = GrowingKVCache(
                    stacked([layer.keys, *(other.keys for other in others)], width, ROOM),
                    stacked([layer.values, *(other.values for other in others)], width, ROOM),
                    width,
                )
            for other in others:
                other.keys = other.values = None
            continue
        for states in ("conv_states", "recurrent_states"):
            own = getattr(layer, states)
            for j in own:
                if own[j] is not None:
                    own[j] = torch.cat([own[j], *(getattr(other, states)[j] for other in others)])
    return whole


def stacked(tensors: Sequence[Tensor], width: int, room: int) -> Tensor:
    """Stack tensors (B_i, H, T_i, D) to (sum B_i, H, width + room, D): zeros on the left, `room` uninitialized on the
    right."""
    rows, (_, heads, _, size) = sum(map(len, tensors)), tensors[0].shape
    whole = tensors[0].new_empty(rows, heads, width + room, size)
    for part, states in zip(torch.split(whole, list(map(len, tensors))), tensors, strict=True):
        blank = width - states.shape[2]
        part[:, :, :blank] = 0
        part[:, :, blank:width] = states
    return whole
