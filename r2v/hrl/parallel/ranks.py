"""How the ranks of a launch meet, share rows and add up. A plain process is alone with its own.

Every rank must come to every call. Sums of the same numbers are the same bits on all ranks, so whoever looks at a sum
decides as the others do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from r2v import distributed

T = TypeVar("T")


def join(device: str) -> None:
    """Meet the other ranks of this launch, if there are any: NCCL between GPUs, gloo on a CPU."""
    if distributed.ranks() == 1:
        return
    import torch.distributed as group

    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device))
    if not group.is_initialized():
        group.init_process_group("nccl" if device.startswith("cuda") else "gloo")


def add_up(tensors: Iterable[Tensor]) -> None:
    """Each tensor becomes, in place, its sum over all ranks."""
    if distributed.ranks() == 1:
        return
    import torch.distributed as group

    for tensor in tensors:
        group.all_reduce(tensor)


def most(mine: int, device: torch.device) -> int:
    """The largest of what the ranks say."""
    if distributed.ranks() == 1:
        return mine
    import torch.distributed as group

    said = torch.tensor(mine, device=device)
    group.all_reduce(said, op=group.ReduceOp.MAX)
    return int(said)


def own(items: Sequence[T]) -> list[T]:
    """This rank's share: every R-th item from the rank's own number on; `episode.gathered` puts shares together."""
    return list(items[distributed.rank() :: distributed.ranks()])
