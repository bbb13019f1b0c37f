"""Prefix tree: rows with a common beginning laid into one sequence, so that shared tokens are read once.

    layouts = lay_out(rows, most=4096)          # rows: ids and labels of an episode's steps, in order
    mask = tree_mask(ends)                      # (B, 1, T, T): each token sees its own path alone

A template that rewrites history (it drops old thoughts) makes each step's prompt differ from the next one's somewhere
near its end: a row for each step would read the long common part again and again. Here each row branches off the path
of the one before. A token sees its ancestors, and its position is its depth. The last token that two paths share is
written again before the second goes on, so that each label follows the token that predicts it, and the usual shifted
loss is that of the rows one by one.

Trees need a model that takes a token's past from a mask (`why_no_trees`), as full attention does. A short convolution
or a recurrent state reads the preceding tokens of the sequence; a sliding window counts back in the sequence, not in
the path; experts are balanced over the rows of a batch. So the configuration is checked, and then the model's logits on
a small tree are compared with those on its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from r2v.randomness import generator

IGNORED = -100
"""Label of a token without loss."""

Row = tuple[Sequence[int], Sequence[int]]
"""ids and labels, the labels not shifted."""

_OTHER_PASTS = ("conv", "linear", "mamba", "recurrent", "ssm")
_MOVING_POSITIONS = ("dynamic", "longrope")
"""Kinds of rotary positions that depend on the length of the sequence."""
_LONGEST = 8192
"""Most tokens of a path: a mask has the square of a sequence's length."""
_FAR_OFF = 0.05
"""Largest distance of a tree's logits from its rows', relative to the effect of a wrong mask."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A tree in one sequence: ids, labels, each token's depth, the end of the tokens that see it; and the number of its
    rows."""

    ids: list[int]
    labels: list[int]
    depths: list[int]
    ends: list[int]
    rows: int


class _Tree:
    """A layout under construction, depth first."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.labels: list[int] = []
        self.depths: list[int] = []
        self.ends: list[int] = []
        self.rows = 0
        self._path: list[int] = []
        """Positions of the tokens of the newest row."""
        self._used: list[bool] = []
        """Tokens that can carry no further label: they have one, or do not follow the token that predicts them."""

    def size_with(self, row: Row) -> int:
        """Return the tokens of the tree with one more row."""
        shared = self._shared(row)
        return len(self.ids) + len(row[0]) - shared + (0 < shared < len(self._path))

    def add(self, row: Row) -> None:
        """Add a row's path."""
        ids, labels = row
        shared = self._shared(row)
        for position, label in zip(self._path[:shared], labels, strict=False):
            if label != IGNORED:
                self.labels[position], self._used[position] = label, True
        self.rows += 1
        if shared == len(ids):
            return
        if 0 < shared < len(self._path):
            self._write(ids[shared - 1], IGNORED, shared - 1, used=True)
        for depth in range(shared, len(ids)):
            self._write(ids[depth], labels[depth], depth, used=labels[depth] != IGNORED)

    def _write(self, token: int, label: int, depth: int, *, used: bool) -> None:
        self._close(depth)
        self._path.append(len(self.ids))
        self.ids.append(token)
        self.labels.append(label)
        self.depths.append(depth)
        self.ends.append(0)
        self._used.append(used)

    def _close(self, depth: int) -> None:
        """Leave the path at this depth: no later token sees the rest of it."""
        for position in self._path[depth:]:
            self.ends[position] = len(self.ids)
        del self._path[depth:]

    def _shared(self, row: Row) -> int:
        """Return the number of a row's tokens that are on the newest path and can carry its labels there."""
        ids, labels = row
        shared = _alike([self.ids[position] for position in self._path], ids)
        return next((i for i in range(shared) if labels[i] != IGNORED and self._used[self._path[i]]), shared)

    def layout(self) -> Layout:
        """Return the finished tree."""
        self._close(0)
        return Layout(self.ids, self.labels, self.depths, self.ends, self.rows)


def _alike(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def lay_out(rows: Iterable[Row], most: int) -> list[Layout]:
    """Return the rows in as few trees as their order allows, each of at most `most` tokens, or of one row."""
    trees = [_Tree()]
    for row in rows:
        if trees[-1].rows and trees[-1].size_with(row) > most:
            trees.append(_Tree())
        trees[-1].add(row)
    return [tree.layout() for tree in trees if tree.rows]


def tree_mask(ends: Tensor) -> Tensor:
    """Return a (B, 1, T, T) mask from (B, T) ends of subtrees: true where a token (row) may see another (column). A
    pad, whose end is 0, is seen by itself alone."""
    time = torch.arange(ends.shape[1], device=ends.device)
    seen = (time[:, None] >= time) & (time[:, None] < ends[:, None, :])
    return (seen | torch.eye(len(time), dtype=torch.bool, device=ends.device))[:, None]


def why_no_trees(model: Any, longest: int) -> str | None:
    """Return the reason why a model cannot be trained on prefix trees of paths of `longest` tokens; None if it can."""
    config = model.config.get_text_config()
    if longest > _LONGEST:
        return f"a mask of policy.max_seq_len {longest} squared would be too large"
    kinds = [str(kind) for kind in getattr(config, "layer_types", None) or ()]
    for kind in kinds:
        if any(other in kind for other in _OTHER_PASTS):
            return f"its layers of kind {kind} take no mask"
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    slides = any("sliding" in kind or "chunked" in kind for kind in kinds) if kinds else bool(window)
    if slides and (window is None or window < longest):
        return f"its attention slides over {window} tokens, fewer than policy.max_seq_len {longest}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _MOVING_POSITIONS:
        return f"its positions are of the type {rope['rope_type']}"
    if getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None):
        return "it is a mixture of experts"
    return _why_it_reads_otherwise(model)


def mask_for(model: Any, ends: Tensor) -> Tensor:
    """Return the tree's mask as the model's attention takes it: booleans, or addends of its scores."""
    seen = tree_mask(ends)
    if model.config.get_text_config()._attn_implementation != "eager":
        return seen
    dtype = model.dtype if model.dtype.is_floating_point else torch.float32
    return torch.zeros(seen.shape, dtype=dtype, device=ends.device).masked_fill(~seen, torch.finfo(dtype).min)


def _why_it_reads_otherwise(model: Any) -> str | None:
    """Return a reason if the model's logits on a small tree differ from those on its rows."""
    rows = _small_rows(model.get_input_embeddings().num_embeddings)
    (tree,) = lay_out(rows, 10_000)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            alone = torch.cat([_labelled(_logits(model, ids), labels) for ids, labels in rows])
            ids, ends = _batch(model, tree.ids), _batch(model, tree.ends)
            mask = mask_for(model, ends)
            read = model(input_ids=ids, attention_mask=mask, position_ids=_batch(model, tree.depths), use_cache=False)
            together = _labelled(read.logits[0], tree.labels)
            flat = _labelled(_logits(model, tree.ids), tree.labels)
    except Exception as error:  # a model may refuse a mask in any way
        return f"it takes no mask of its own ({type(error).__name__})"
    finally:
        model.train(was_training)
    wrong, right = float((flat - alone).abs().max()), float((together - alone).abs().max())
    return None if right <= _FAR_OFF * wrong else "it reads a tree differently from its rows"


def _small_rows(vocabulary: int) -> list[Row]:
    """Return three steps of a conversation of random tokens whose history is rewritten after each."""
    draw = generator("prefix tree")
    tokens = [draw.randrange(vocabulary) for _ in range(60)]
    begun, rows = tokens[:12], list[Row]()
    for step in range(3):
        action = tokens[40 + 5 * step : 44 + 5 * step]
        rows.append((begun + action, [IGNORED] * len(begun) + action))
        begun = begun + [(action[0] + 1) % vocabulary] + tokens[12 + 8 * step : 20 + 8 * step]
    return rows


def _batch(model: Any, values: list[int]) -> Tensor:
    return torch.tensor([values], device=model.device)


def _logits(model: Any, ids: Any) -> Tensor:
    logits: Tensor = model(input_ids=_batch(model, list(ids)), use_cache=False).logits[0]
    return logits


def _labelled(logits: Tensor, labels: Any) -> Tensor:
    """Return the logits that predict labelled tokens."""
    return logits[[i - 1 for i, label in enumerate(labels) if label != IGNORED]].float()
