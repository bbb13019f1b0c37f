"""Parts of sharded tensors in a checkpoint: each rank writes its own, and any number of ranks joins them again.

    torch.save(nested, part_file)                 # nested dicts whose sharded tensors are `own_part`s
    joined([torch.load(file) for file in files])  # the same dicts, of whole tensors, each made when it is looked up

FSDP2 cuts along the first dimension, in the order of the ranks, so a tensor is its parts one after the other. Nobody
gathers a model for a checkpoint, and who resumes has one whole tensor at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from r2v import distributed

_PART = "part"


def own_part(tensor: Tensor) -> Any:
    """What this rank writes of a tensor, on the CPU: its part, marked as one. Of an unsharded one rank 0 writes
    all, the others nothing."""
    if isinstance(tensor, DTensor):
        return {_PART: tensor.to_local().detach().to("cpu", copy=True)}
    return tensor.detach().to("cpu", copy=True) if distributed.rank() == 0 else tensor.new_empty(0, device="cpu")


def joined(parts: Sequence[Any]) -> Any:
    """What the ranks wrote, first to last, as one."""
    first = parts[0]
    if not isinstance(first, dict):
        return first
    if any(_is_part(value) for value in first.values()):
        return JoinedTensors(parts)
    return {name: joined([one[name] for one in parts]) for name in first}


class JoinedTensors(Mapping[str, Any]):
    """A dict of whole tensors, each made of its parts when it is looked up."""

    def __init__(self, parts: Sequence[Mapping[str, Any]]) -> None:
        self._parts = parts

    def __getitem__(self, name: str) -> Any:
        value = self._parts[0][name]
        return torch.cat([one[name][_PART] for one in self._parts]) if _is_part(value) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts[0])

    def __len__(self) -> int:
        return len(self._parts[0])


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {_PART}
