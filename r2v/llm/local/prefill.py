"""Reading prompts: in groups of like length, from where they differ from what was read before.

    for read in prefill(model, prompts, pad_id, prefixes):
        read.output.last_hidden_state[:, -1]      # of the prompts read.rows

Prompts are padded on the left: recurrent and convolution layers then start from zeros, as they would alone, and
every row's newest token stands last.
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
"""Tokens of padding that cost as much as another pass through the model: one thread, 4x64 student; a GPU, which reads
thousands of tokens about as fast as one (assumed, not measured)."""


@dataclass(frozen=True, slots=True)
class Read:
    """One pass: which prompts, what the model gave for their newest tokens, and who is padding, (rows, T)."""

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
    """Put every prompt through the model, what `prefixes` remembers of it excepted. padding: tokens of it that cost as
    much as another pass; None: by the model's device. `options` go to the model.

    With a cache that cannot be taken apart it is one pass.
    """
    texts = [tuple(prompt) for prompt in prompts]
    known = [[] if prefixes is None else prefixes.known(text) for text in texts]
    new = [max(1, len(text) - BLOCK * len(blocks)) for text, blocks in zip(texts, known, strict=True)]
    if padding is None:
        padding = PASS_OF_A_CPU if model.device.type == "cpu" else PASS_OF_A_GPU
    groups = _alike(new, padding) if joinable(model) else [list(range(len(texts)))]
    return [
        _read(
            model,
            group,
            [texts[i] for i in group],
            max(new[i] for i in group),
            pad_id,
            prefixes,
            [known[i] for i in group],
            options,
        )
        for group in groups
    ]


def positions(mask: Tensor) -> Tensor:
    """Each token's position in its row, padding not counted."""
    return (mask.cumsum(dim=-1) - 1).clamp_min(0)


def _read(
    model: Any,
    rows: list[int],
    prompts: Sequence[tuple[int, ...]],
    width: int,
    pad_id: int,
    prefixes: PrefixCache | None,
    known: Sequence[Sequence[Tensor]],
    options: dict[str, Any],
) -> Read:
    """One pass over the last `width` tokens of every prompt."""
    kept = [max(0, len(prompt) - width) for prompt in prompts]
    cache = None if prefixes is None else prefixes.cache(known, kept, width)
    total = max(kept) + width
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
        prefixes.remember(prompts, cache, width)
    return Read(rows, output, mask)


def _alike(lengths: Sequence[int], padding: int) -> list[list[int]]:
    """Prompts by length of what is to be read, in groups of at most so many tokens of padding."""
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
