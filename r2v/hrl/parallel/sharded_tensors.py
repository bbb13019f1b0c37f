"""Tensors that are sharded over the ranks, by FSDP2 or ZeRO-3: made whole, set, and written into checkpoints.

    torch.save({"w": own_part(w)}, part_file)     # on each rank, nested dicts
    joined([torch.load(file) for file in files])  # the same dicts, of whole tensors, each made when it is looked up

FSDP2 cuts along the first dimension, in the order of the ranks, so a tensor is its parts one after the other. Each rank
writes its own parts, any number of ranks joins them again, and nobody gathers a model for a checkpoint: who resumes has
one whole tensor at a time. Functions that take an unsharded tensor return it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from r2v import distributed

TakeFn = Callable[[Tensor], Any]
"""The form that a checkpoint has of a tensor that may be sharded: `full_cpu_copy`, `contribute` or `own_part`."""

_PART = "part"


def is_sharded(tensor: Tensor) -> bool:
    """True if other ranks hold the rest of it."""
    return isinstance(tensor, DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor; of a sharded one all ranks must ask."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    if not hasattr(tensor, "ds_id"):
        return tensor
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([tensor]):
        return tensor.detach().clone()


def full_shape(tensor: Tensor) -> tuple[int, ...]:
    """The full tensor's shape; a ZeRO-3 parameter is empty between uses and keeps its shape as `ds_shape`."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


@torch.no_grad()
def copy_into(tensor: Tensor, value: Tensor) -> None:
    """Set a tensor, sharded or not, to a value that every rank has in full."""
    if not hasattr(tensor, "ds_id"):
        tensor.copy_(shard_like(value, tensor))
        return
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([tensor], modifier_rank=0):
        tensor.copy_(value)


def full_cpu_copy(tensor: Tensor) -> Tensor:
    """A full copy on the CPU; of a sharded tensor all ranks must ask, or `contribute`."""
    return full_tensor(tensor).detach().to("cpu", copy=True)


def contribute(tensor: Tensor) -> Tensor:
    """An empty tensor, when this rank has given its shard to the ranks that take a full copy: several copies on one
    machine would need the memory several times."""
    return full_tensor(tensor).detach().new_empty(0)


def shard_like(tensor: Tensor, model: Tensor) -> Tensor:
    """A full tensor, which every rank has, sharded as `model` is: this rank's shard, or all of it."""
    if not isinstance(model, DTensor) or tensor.shape != model.shape:
        return tensor
    shard = distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements, src_data_rank=None)
    return shard.clone()  # a view of the full tensor would keep that alive


def optimizer_state_of(optimizer: torch.optim.Optimizer, take: TakeFn = full_cpu_copy) -> dict[str, Any]:
    """An optimizer's state for a checkpoint, in full tensors, or what `take` makes of each. All ranks must ask where
    its parameters are sharded."""
    saved = optimizer.state_dict()
    if not any(is_sharded(tensor) for group in optimizer.param_groups for tensor in group["params"]):
        return saved
    state = {
        index: {name: take(value) if isinstance(value, Tensor) else value for name, value in moments.items()}
        for index, moments in saved["state"].items()
    }
    return {**saved, "state": state}


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load what `optimizer_state_of` gave, however its parameters were sharded."""
    parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    state = {
        index: {
            name: shard_like(value, parameters[index]) if isinstance(value, Tensor) else value
            for name, value in moments.items()
        }
        for index, moments in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": state})


def own_part(tensor: Tensor) -> Any:
    """Return this rank's share of a tensor, on the CPU: its part, marked as one. Of an unsharded one rank 0 writes
    all, the others nothing."""
    if isinstance(tensor, DTensor):
        return {_PART: tensor.to_local().detach().to("cpu", copy=True)}
    return tensor.detach().to("cpu", copy=True) if distributed.rank() == 0 else tensor.new_empty(0, device="cpu")


def joined(parts: Sequence[Any]) -> Any:
    """Return the parts of all ranks, first to last, as one."""
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
