"""Collectives over the ranks of a launch: all-reduce, all-gather, and each rank's share of a list.

Every rank must make every call. A plain process is rank 0 of 1 and communicates with nobody. Sums of the same numbers
are the same bits on all ranks, so ranks that branch on a sum take the same branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor

from r2v import distributed

T = TypeVar("T")


WAITING_TIME = timedelta(hours=2)
"""How long a rank waits for the others, as it does while the first one writes a checkpoint: NCCL's own ten minutes are
too few for 190 GB on a network's disk."""


def join(device: str) -> None:
    """Initialise the process group of this launch, if it has several ranks: NCCL between GPUs, gloo on a CPU. `device`
    is this rank's (`r2v.hrl.parallel.placement.first_device`)."""
    if distributed.ranks() == 1:
        return
    import torch.distributed as group

    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device))
    if not group.is_initialized():
        group.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=WAITING_TIME)


def all_reduce(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor, in place, by its sum over all ranks."""
    if distributed.ranks() == 1:
        return
    import torch.distributed as group

    for tensor in tensors:
        group.all_reduce(tensor)


def max_over_ranks(value: int, device: torch.device) -> int:
    """The largest of the ranks' values."""
    if distributed.ranks() == 1:
        return value
    import torch.distributed as group

    largest = torch.tensor(value, device=device)
    group.all_reduce(largest, op=group.ReduceOp.MAX)
    return int(largest)


def local_share(items: Sequence[T]) -> list[T]:
    """This rank's share, `items[rank::ranks]`; `all_gather` puts the shares together again."""
    return list(items[distributed.rank() :: distributed.ranks()])


def all_gather(share: Sequence[T]) -> list[T]:
    """All ranks' items on every rank, in the order they had before `local_share`."""
    if distributed.ranks() == 1:
        return list(share)
    import torch.distributed as group

    shares: list[Any] = [None] * distributed.ranks()
    group.all_gather_object(shares, list(share))
    return [shares[index % len(shares)][index // len(shares)] for index in range(sum(map(len, shares)))]
