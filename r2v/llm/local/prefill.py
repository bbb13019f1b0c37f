"""Prefill: prompts are read in groups of similar length, starting after the prefix that is cached.

    for read in prefill(model, prompts, pad_id, prefixes):
        read.output.last_hidden_state[:, -1]      # of the prompts read.rows

Prompts are padded on the left, so that recurrent and convolution layers start from zeros as they would alone, and every
row's newest token is last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from r2v.llm.local.kv_caches import joinable
from r2v.llm.local.prefix_cache import BLOCK, PrefixCache

PASS_OF_A_CPU, PASS_OF_A_GPU = 200, 4096
"""Tokens of padding that cost as much as another pass through the model: measured for one CPU thread and the 4x64
student; assumed for a GPU, which reads thousands of tokens about as fast as one."""


@dataclass(frozen=True, slots=True)
class Read:
    """One pass: indices of its prompts, the model's output, and the attention mask (rows, T)."""

    rows: list[int]
    output: Any
    mask: Tensor


def prefill(
    model: Any,
    prompts: Sequence[Sequence[int]],
    pad_id: int,
    prefixes: PrefixCache | None = None,
    *,
    padding: int | None = None,
    **options: Any,
) -> list[Read]:
    """Read every prompt with the model, except for prefixes cached in `prefixes`. padding: tokens of padding that cost
    as much as another pass; None: by the model's device. `options` go to the model.

    A model whose caches are not `joinable` reads all prompts in one pass.
    """
    texts = [tuple(prompt) for prompt in prompts]
    cached = [[] for _ in texts] if prefixes is None else prefixes.lookup(texts)
    new = [max(1, len(text) - BLOCK * len(blocks)) for text, blocks in zip(texts, cached, strict=True)]
    if padding is None:
        padding = PASS_OF_A_CPU if model.device.type == "cpu" else PASS_OF_A_GPU
    groups = _similar(new, padding) if joinable(model) else [list(range(len(texts)))]
    return [
        _read(
            model,
            group,
            [texts[i] for i in group],
            max(new[i] for i in group),
            pad_id,
            prefixes,
            [cached[i] for i in group],
            options,
        )
        for group in groups
    ]


def positions(mask: Tensor) -> Tensor:
    """Return each token's position in its row, (rows, T), not counting padding."""
    return (mask.cumsum(dim=-1) - 1).clamp_min(0)


def _read(
    model: Any,
    rows: list[int],
    prompts: Sequence[tuple[int, ...]],
    width: int,
    pad_id: int,
    prefixes: PrefixCache | None,
    cached: Sequence[Sequence[Tensor]],
    options: dict[str, Any],
) -> Read:
    """Read the last `width` tokens of every prompt in one pass."""
    past = [max(0, len(prompt) - width) for prompt in prompts]
    cache = None if prefixes is None else prefixes.cache(cached, past, width)
    total = max(past) + width
    ids = torch.tensor([([pad_id] * width + list(p))[-width:] for p in prompts], device=model.device)
    blank = torch.tensor([total - len(p) for p in prompts], device=model.device)
    mask = (torch.arange(total, device=model.device) >= blank[:, None]).long()
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions(mask)[:, -width:],
        past_key_values=cache,
        use_cache=True,
        **options,
    )
    if prefixes is not None:
        prefixes.store(prompts, cache, width)
    return Read(rows, output, mask)


def _similar(lengths: Sequence[int], padding: int) -> list[list[int]]:
    """Return indices of prompts grouped by length, each group with at most `padding` tokens of padding."""
    groups: list[list[int]] = []
    width = spent = 0
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        spent += (lengths[i] - width) * len(groups[-1]) if groups else 0
        if groups and spent <= padding:
            groups[-1].append(i)
        else:
            groups.append([i])
            spent = 0
        width = lengths[i]
    return groups
