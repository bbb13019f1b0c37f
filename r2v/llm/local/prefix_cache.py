"""Prefix cache: a model's states of earlier prompts, reused for prompts with the same beginning.

Conversations only grow, and samples and branches share their past, so the model has read most of a prompt before.
`PrefixCache` stores the states of attention and short-convolution layers in blocks of tokens, each keyed by all tokens
up to its end, in order of last use:

    blocks = prefixes.lookup(prompts)            # of each prompt's longest cached prefix
    cache = prefixes.cache(blocks, past, width)  # a transformers cache with the first past[i] tokens of row i
    ...                                          # the model reads the rest
    prefixes.store(prompts, cache, width)

A token's state depends only on the tokens before it, so reuse changes no result (in float64 by at most 1e-12). States
are stored on the model's device, on a GPU in memory that the planner reserves (`r2v.memory.sizes.prefix_states`). On an
H200, 8 prompts of 4,096 tokens that grow by 256 take a model of 1 B parameters .24 s without the cache, .10 s with
states on the GPU, and .78 s with states in host memory, because of the copies.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import DynamicCache, DynamicLayer, LinearAttentionLayer

from r2v.llm.local.kv_caches import ROOM, GrowingKVCache
from r2v.memory.sizes import prefix_states

BLOCK = 16
"""Tokens per block."""
_BYTES = 1 << 28
"""Default capacity in host memory: a token takes 100 KB in a large model, 1 KB in the bundled student."""
_SLAB = 1 << 26
"""Bytes of blocks allocated at a time, or one block: separate ones would leave holes in the heap when they are evicted.
A CPU's slab takes memory as it is filled, because glibc maps more than 32 MiB by themselves."""
_AT_ONCE = 1 << 26
"""Bytes of states that `store` concatenates at a time, so that a GPU needs no room for a second cache."""


class PrefixCache:
    """LRU cache of states by prompt prefix, of at most `max_bytes`, for one model whose weights do not change."""

    def __init__(self, model: Any, max_bytes: int | None = None) -> None:
        self.config, self._device = model.config, model.device
        self.max_bytes = _usual_bytes(self._device) if max_bytes is None else max_bytes
        self._blocks: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()
        self._free: list[Tensor] = []
        self._evicted: list[Tensor] = []
        """Blocks evicted since the last lookup, whose results may still hold them."""
        self._shapes: list[tuple[int, int, int]] = []
        """Per state of a token: heads (or channels of a convolution), numbers per head, kernel size (0 for
        attention)."""

    @staticmethod
    def supports(model: Any) -> bool:
        """True if the states of every layer can be cut at any token: full attention or short convolution, but no
        sliding window or recurrence."""
        kinds = getattr(model.config, "layer_types", None) or ()
        layers = DynamicCache(config=model.config).layers
        return bool(layers) and all(
            type(layer) is DynamicLayer or (type(layer) is LinearAttentionLayer and kinds[i] == "conv")
            for i, layer in enumerate(layers)
        )

    def lookup(self, prompts: Sequence[tuple[int, ...]]) -> list[list[Tensor]]:
        """Return the blocks (BLOCK, F) of each prompt's longest cached prefix. They are valid until the next call."""
        self._free += self._evicted
        self._evicted = []
        return [self._prefix(prompt) for prompt in prompts]

    def _prefix(self, prompt: tuple[int, ...]) -> list[Tensor]:
        blocks = []
        for end in range(BLOCK, len(prompt) + 1, BLOCK):
            block = self._blocks.get(prompt[:end])
            if block is None:
                break
            blocks.append(block)
        for end in range(BLOCK * len(blocks), 0, -BLOCK):
            self._blocks.move_to_end(prompt[:end])
        return blocks

    def cache(self, rows: Sequence[Sequence[Tensor]], lengths: Sequence[int], width: int) -> Any:
        """Return a transformers cache with the first `lengths[i]` tokens of every row, padded with zeros on the left,
        and capacity for `width` more and a reply."""
        cache = DynamicCache(config=self.config)
        cache.activate_past_recording()
        past = max(lengths)
        if past == 0:
            return cache
        some = next(block for row in rows for block in row)
        filled = []
        for heads, numbers, kernel in self._shapes:
            filled.append(some.new_empty(len(rows), heads, kernel or past + width + ROOM, numbers))
        for row, (blocks, length) in enumerate(zip(rows, lengths, strict=True)):
            prefix = torch.cat(list(blocks))[:length] if length else some[:0]
            parts = torch.split(prefix, [heads * numbers for heads, numbers, _ in self._shapes], dim=-1)
            for states, part, (heads, numbers, kernel) in zip(filled, parts, self._shapes, strict=True):
                end = kernel or past
                begin = max(0, end - length)
                states[row, :, :begin] = 0
                states[row, :, begin:end] = part[length - end + begin :].reshape(-1, heads, numbers).transpose(0, 1)
        ready = iter(filled)
        for i, layer in enumerate(cache.layers):
            if isinstance(layer, DynamicLayer):
                cache.layers[i] = GrowingKVCache(next(ready), next(ready), past)
            else:
                inputs = next(ready)[..., 0]
                layer.update_conv_state(inputs, conv_kernel_size=inputs.shape[-1])
        return cache

    def store(self, prompts: Sequence[tuple[int, ...]], cache: Any, width: int) -> None:
        """Store the states of the last `width` tokens of each prompt. `cache`, from `self.cache` and filled by the
        model, is afterwards ready for decoding."""
        states, self._shapes = [], []  # views: (B, width, heads or 1, numbers of each)
        for layer in cache.layers:
            if isinstance(layer, DynamicLayer):
                for attended in (layer.keys, layer.values):
                    states.append(attended[:, :, -width:].transpose(1, 2))
                    self._shapes.append((attended.shape[1], attended.shape[3], 0))
            else:
                inputs, kernel = layer.conv_states[0], layer.conv_kernel_size[0]
                states.append(inputs[:, None, :, -width:].transpose(1, 3).transpose(2, 3))
                self._shapes.append((inputs.shape[1], 1, kernel))
                newest = pad(inputs, (kernel, 0))[..., -kernel:].contiguous()  # zeros before the first token
                layer.conv_states[0], layer.record_past = newest, False
        rows = max(1, _AT_ONCE // (width * self._width * states[0].element_size()))
        for start in range(0, len(prompts), rows):
            some = torch.cat([state[start : start + rows].flatten(2) for state in states], dim=-1)
            for prompt, row in zip(prompts[start : start + rows], some, strict=True):
                self._insert(prompt, row)

    def _insert(self, prompt: tuple[int, ...], states: Tensor) -> None:
        """Insert the blocks of a prompt's last tokens; states: (width, F). Its first block is evicted last."""
        start = len(prompt) - len(states)
        for end in range(len(prompt) // BLOCK * BLOCK, max(start, 0) + BLOCK - 1, -BLOCK):
            if prompt[:end] not in self._blocks:
                block = states[end - BLOCK - start : end - start]
                if not self._free:
                    slab = block.new_empty(max(1, min(_SLAB, self.max_bytes) // block.nbytes), *block.shape)
                    self._free = list(slab)
                self._blocks[prompt[:end]] = self._free.pop().copy_(block)
        while self.size > self.max_bytes:
            self._evicted.append(self._blocks.popitem(last=False)[1])

    @property
    def size(self) -> int:
        """Bytes of all states."""
        if not self._blocks:
            return 0
        return len(self._blocks) * next(iter(self._blocks.values())).nbytes

    @property
    def _width(self) -> int:
        return sum(heads * numbers for heads, numbers, _ in self._shapes)


def _usual_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return _BYTES
    return int(prefix_states(torch.cuda.get_device_properties(device).total_memory))
