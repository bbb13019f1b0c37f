"""What a model made of the prompts it has seen, for prompts that begin like them.

Conversations only grow, and samples and branches share their past, so most of a prompt has been through the model
before. `PrefixCache` keeps what attention and short-convolution layers hold of each token, in blocks of tokens named
by everything up to their end, newest used last:

    blocks = prefixes.known(prompt)             # of the longest beginning that is still here
    cache = prefixes.cache([blocks, ...], kept) # a transformers cache that holds the first kept[i] tokens of row i
    ...                                         # the model reads the rest
    prefixes.remember(prompts, cache, width)

A state of a token depends on the tokens before it alone, so what is kept changes no result (in float64: by more
than 1e-12). States are kept where the model is, on a GPU in a part of its memory that the planner sets aside
(`r2v.memory.sizes.prefix_states`). On an H200 8 prompts of 4,096 tokens that grow by 256 take a model of 1 B parameters
.24 s anew, .10 s with states on the GPU, and .78 s with states in the host's memory, which copying makes useless.
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
from r2v.memory.release import release_free_memory
from r2v.memory.sizes import prefix_states

BLOCK = 16
"""Tokens a block."""
_BYTES = 1 << 28
"""Of states in the host's memory: a large model's token takes 100 KB, the bundled student's 1 KB."""
_RELEASED = 1 << 26
"""Bytes of states that are evicted before the holes that they leave in the heap are released."""
_AT_ONCE = 1 << 26
"""Bytes of states that `remember` puts together at a time, so that a GPU needs no second cache for it."""


class PrefixCache:
    """States of prompts by their beginnings, at most `max_bytes` of them; what was unused longest goes first.

    They belong to one model, whose weights stay as they are.
    """

    def __init__(self, model: Any, max_bytes: int | None = None) -> None:
        self.config, self._device = model.config, model.device
        self.max_bytes = _usual_bytes(self._device) if max_bytes is None else max_bytes
        self._blocks: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()
        self._evicted = 0
        """Bytes, since memory was last released."""
        self._shapes: list[tuple[int, int, int]] = []
        """Per state of a token: heads (channels of a convolution), numbers of each, kernel of a convolution or 0."""

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

    def cache(self, rows: Sequence[Sequence[Tensor]], kept: Sequence[int], width: int) -> Any:
        """A cache that holds the first `kept[i]` tokens of every row, padded with zeros on the left, with room for
        `width` more and a reply."""
        cache = DynamicCache(config=self.config)
        cache.activate_past_recording()
        past = max(kept)
        if past == 0:
            return cache
        some = next(block for row in rows for block in row)
        filled = []
        for heads, numbers, kernel in self._shapes:
            filled.append(some.new_empty(len(rows), heads, kernel or past + width + ROOM, numbers))
        for row, (blocks, keep) in enumerate(zip(rows, kept, strict=True)):
            known = torch.cat(list(blocks))[:keep] if keep else some[:0]
            parts = torch.split(known, [heads * numbers for heads, numbers, _ in self._shapes], dim=-1)
            for states, part, (heads, numbers, kernel) in zip(filled, parts, self._shapes, strict=True):
                end = kernel or past
                begin = max(0, end - keep)
                states[row, :, :begin] = 0
                states[row, :, begin:end] = part[keep - end + begin :].reshape(-1, heads, numbers).transpose(0, 1)
        ready = iter(filled)
        for i, layer in enumerate(cache.layers):
            if isinstance(layer, DynamicLayer):
                cache.layers[i] = GrowingKVCache(next(ready), next(ready), past)
            else:
                inputs = next(ready)[..., 0]
                layer.update_conv_state(inputs, conv_kernel_size=inputs.shape[-1])
        return cache

    def remember(self, prompts: Sequence[tuple[int, ...]], cache: Any, width: int) -> None:
        """Keep what the model made of the last `width` tokens of each prompt. The cache, made by `cache` and filled
        by the model, is from then on one to decode with."""
        states, self._shapes = [], []  # views: (B, width, heads or 1, numbers of each)
        for layer in cache.layers:
            if isinstance(layer, DynamicLayer):
                for kept in (layer.keys, layer.values):
                    states.append(kept[:, :, -width:].transpose(1, 2))
                    self._shapes.append((kept.shape[1], kept.shape[3], 0))
            else:
                inputs, kernel = layer.conv_states[0], layer.conv_kernel_size[0]
                states.append(inputs[:, None, :, -width:].transpose(1, 3).transpose(2, 3))
                self._shapes.append((inputs.shape[1], 1, kernel))
                newest = pad(inputs, (kernel, 0))[..., -kernel:].contiguous()  # zeros before the first
                layer.conv_states[0], layer.record_past = newest, False
        rows = max(1, _AT_ONCE // (width * self._width * states[0].element_size()))
        for start in range(0, len(prompts), rows):
            some = torch.cat([state[start : start + rows].flatten(2) for state in states], dim=-1)
            for prompt, row in zip(prompts[start : start + rows], some, strict=True):
                self._keep(prompt, row)
        if self._evicted > _RELEASED and self._device.type == "cpu":
            release_free_memory()
            self._evicted = 0

    def _keep(self, prompt: tuple[int, ...], states: Tensor) -> None:
        """states: (width, F), of the prompt's last tokens. The first of its blocks will be the last to go."""
        start = len(prompt) - len(states)
        for end in range(len(prompt) // BLOCK * BLOCK, max(start, 0) + BLOCK - 1, -BLOCK):
            if prompt[:end] not in self._blocks:
                self._blocks[prompt[:end]] = states[end - BLOCK - start : end - start].clone()
        while self.size > self.max_bytes:
            self._evicted += self._blocks.popitem(last=False)[1].nbytes

    @property
    def size(self) -> int:
        """Bytes of states."""
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
