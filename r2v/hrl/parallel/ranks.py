"""Collectives over the ranks of a launch: all-reduce, all-gather, and each rank's share of a list.

Every rank must make every call. A plain process is rank 0 of 1 and does not communicate. Sums have the same bits on all
ranks, so ranks that branch on a sum take the same branch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from r2v import distributed

T = TypeVar("T")


def all_reduce(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor, in place, by its sum over all ranks."""
    if distributed.ranks() == 1:
        return
    import torch.distributed as group

    for tensor in tensors:
        group.all_reduce(tensor)


def max_over_ranks(value: int, device: torch.device) -> int:
    """Return the largest of the ranks' values."""
    if distributed.ranks() == 1:
        return value
    import torch.distributed as group

    largest = torch.tensor(value, device=device)
    group.all_reduce(largest, op=group.ReduceOp.MAX)
    return int(largest)


def local_share(items: Sequence[T]) -> list[T]:
    """Return this rank's share, `items[rank::ranks]`; `all_gather` reassembles the shares."""
    return list(items[distributed.rank() :: distributed.ranks()])


def all_gather(share: Sequence[T]) -> list[T]:
    """Return all ranks' items on every rank, in the order before `local_share`. They are sent as JSON: numbers, texts,
    and lists and dictionaries of these; a tuple arrives as a list."""
    if distributed.ranks() == 1:
        return list(share)
    shares = [json.loads(sent) for sent in distributed.exchange(json.dumps(share).encode())]
    return [shares[index % len(shares)][index // len(shares)] for index in range(sum(map(len, shares)))]
