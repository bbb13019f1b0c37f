"""What a model made of the prompts it has seen, for prompts that begin like them.

Conversations only grow, and samples and branches share their past, so most of a prompt has been through the model
before. `PrefixCache` keeps what attention and short-convolution layers hold of each token, in blocks of tokens named
by everything up to their end, newest used last:

    blocks = prefixes.known(prompt)             # of the longest beginning that is still here
    cache = prefixes.cache([blocks, ...], kept) # a transformers cache that holds the first kept[i] tokens of row i
    ...                                         # the model reads the rest
    prefixes.remember(prompts, cache, width)

A state of a token depends on the tokens before it alone, so what is kept changes no result (in float64: by more
than 1e-12). States are kept in the host's memory, wherever the model is: a GPU's is the model's and its batch's, and
copying a state there is tens of times cheaper than making it anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import DynamicCache, DynamicLayer, LinearAttentionLayer

BLOCK = 16
"""Tokens a block."""
_BYTES, _BYTES_OF_A_GPU = 1 << 28, 1 << 33
"""Of states: a large model's token takes 100 KB, the bundled student's 1 KB."""


class PrefixCache:
    """States of prompts by their beginnings, at most `max_bytes` of them; what was unused longest goes first.

    They belong to one model, whose weights stay as they are.
    """

    def __init__(self, model: Any, max_bytes: int | None = None) -> None:
        self.config, self._device = model.config, model.device
        usual = _BYTES if self._device.type == "cpu" else _BYTES_OF_A_GPU
        self.max_bytes = usual if max_bytes is None else max_bytes
        self._blocks: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()
        self._shapes: list[tuple[int, int]] = []
        """Per state of a token: heads (or a convolution's kernel), and numbers in all."""

    @staticmethod
    def serve(model: Any) -> bool:
        """Whether every layer's cache is of a kind whose states can be cut at any token: full attention or a
        short convolution. Sliding windows and recurrent states cannot."""
        kinds = getattr(model.config, "layer_types", None) or ()
        layers = DynamicCache(config=model.config).layers
        return bool(layers) and all(
            type(layer) is DynamicLayer or (type(layer) is LinearAttentionLayer and kinds[i] == "conv")
            for i, layer in enumerate(layers)
        )

    def known(self, prompt: tuple[int, ...]) -> list[Tensor]:
        """The blocks (BLOCK, F) of the longest beginning that is remembered."""
        found = []
        for end in range(BLOCK, len(prompt) + 1, BLOCK):
            block = self._blocks.get(prompt[:end])
            if block is None:
                break
            found.append(block)
        for end in range(BLOCK * len(found), 0, -BLOCK):
            self._blocks.move_to_end(prompt[:end])
        return found

    def cache(self, rows: Sequence[Sequence[Tensor]], kept: Sequence[int]) -> Any:
        """A cache that holds the first `kept[i]` tokens of every row, padded with zeros on the left."""
        cache = DynamicCache(config=self.config)
        cache.activate_past_recording()
        room = max(kept)
        if room == 0:
            return cache
        past = next(block for row in rows for block in row).new_zeros(len(rows), room, self._width)
        for row, blocks, keep in zip(past, rows, kept, strict=True):
            if keep:
                row[room - keep :] = torch.cat(list(blocks))[:keep]
        # one by one, so that each leaves the model's device as soon as the model has joined its own to it
        states = (part.to(self._device) for part in torch.split(past, [size for _, size in self._shapes], dim=-1))
        shapes = iter(self._shapes)
        for layer in cache.layers:
            if isinstance(layer, DynamicLayer):
                layer.keys, layer.values = (_by_head(next(states), next(shapes)[0]) for _ in range(2))
                layer.dtype, layer.device, layer.is_initialized = past.dtype, self._device, True
            else:
                kernel = next(shapes)[0]
                layer.update_conv_state(_newest(next(states).transpose(1, 2), kernel), conv_kernel_size=kernel)
        return cache

    def remember(self, prompts: Sequence[tuple[int, ...]], cache: Any, width: int) -> None:
        """Keep what the model made of the last `width` tokens of each prompt. The cache, made by `cache` and filled
        by the model, is from then on one to decode with."""
        states, self._shapes = [], []
        for layer in cache.layers:
            if isinstance(layer, DynamicLayer):
                for kept in (layer.keys, layer.values):
                    states.append(kept[:, :, -width:].transpose(1, 2).flatten(2).cpu())
                    self._shapes.append((kept.shape[1], states[-1].shape[2]))
            else:
                inputs, kernel = layer.conv_states[0], layer.conv_kernel_size[0]
                states.append(inputs[:, :, -width:].transpose(1, 2).cpu())
                self._shapes.append((kernel, inputs.shape[1]))
                layer.conv_states[0], layer.record_past = _newest(inputs, kernel), False
        for prompt, row in zip(prompts, torch.cat(states, dim=-1), strict=True):
            self._keep(prompt, row)

    def _keep(self, prompt: tuple[int, ...], states: Tensor) -> None:
        """states: (width, F), of the prompt's last tokens. The first of its blocks will be the last to go."""
        start = len(prompt) - len(states)
        for end in range(len(prompt) // BLOCK * BLOCK, max(start, 0) + BLOCK - 1, -BLOCK):
            if prompt[:end] not in self._blocks:
                self._blocks[prompt[:end]] = states[end - BLOCK - start : end - start].clone()
        while self.size > self.max_bytes:
            self._blocks.popitem(last=False)

    @property
    def size(self) -> int:
        """Bytes of states."""
        if not self._blocks:
            return 0
        return len(self._blocks) * next(iter(self._blocks.values())).nbytes

    @property
    def _width(self) -> int:
        return sum(size for _, size in self._shapes)


def _newest(inputs: Tensor, kernel: int) -> Tensor:
    """(B, H, T) -> (B, H, kernel): the last of them, zeros before the first."""
    return pad(inputs, (kernel, 0))[..., -kernel:].contiguous()


def _by_head(states: Tensor, heads: int) -> Tensor:
    """(B, T, heads * D) -> (B, heads, T, D)."""
    return states.reshape(*states.shape[:2], heads, -1).transpose(1, 2)
