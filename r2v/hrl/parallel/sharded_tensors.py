"""Tensors sharded over the ranks by FSDP2 or ZeRO-3: full copies, assignment and checkpoints.

    torch.save({"w": own_part(w)}, part_file)     # on each rank, nested dicts
    joined([torch.load(file) for file in files])  # the same dicts of whole tensors, joined on lookup

FSDP2 splits along the first dimension, in the order of the ranks, so a tensor is the concatenation of its parts. Each
rank writes its own parts, and any number of ranks joins them again: no rank gathers a model for a checkpoint, and a
resuming rank has one whole tensor at a time. Functions return an unsharded tensor unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from r2v import distributed

TakeFn = Callable[[Tensor], Any]
"""Conversion of a possibly sharded tensor for a checkpoint: `full_cpu_copy`, `contribute` or `own_part`."""

_PART = "part"


def is_sharded(tensor: Tensor) -> bool:
    """True if other ranks hold the rest of the tensor."""
    return isinstance(tensor, DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor; for a sharded one all ranks must call."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    if not hasattr(tensor, "ds_id"):
        return tensor
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([tensor]):
        return tensor.detach().clone()


def full_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the full tensor's shape. A ZeRO-3 parameter is empty between uses and has its shape as `ds_shape`."""
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
    """Return a full copy on the CPU; for a sharded tensor all ranks must call this or `contribute`."""
    return full_tensor(tensor).detach().to("cpu", copy=True)


def contribute(tensor: Tensor) -> Tensor:
    """Contribute this rank's shard to the full copies of other ranks, and return an empty tensor: several full copies
    on one machine would take the memory several times."""
    return full_tensor(tensor).detach().new_empty(0)


def shard_like(tensor: Tensor, model: Tensor) -> Tensor:
    """Return this rank's shard of a full tensor on every rank, sharded like `model`; all of it if that is unsharded."""
    if not isinstance(model, DTensor) or tensor.shape != model.shape:
        return tensor
    shard = distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements, src_data_rank=None)
    return shard.clone()  # a view would keep the full tensor in memory


def optimizer_state_of(optimizer: torch.optim.Optimizer, take: TakeFn = full_cpu_copy) -> dict[str, Any]:
    """Return an optimizer's state for a checkpoint, each tensor converted by `take`. All ranks must call if its
    parameters are sharded."""
    saved = optimizer.state_dict()
    if not any(is_sharded(tensor) for group in optimizer.param_groups for tensor in group["params"]):
        return saved
    state = {
        index: {name: take(value) if isinstance(value, Tensor) else value for name, value in moments.items()}
        for index, moments in saved["state"].items()
    }
    return {**saved, "state": state}


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load a state of `optimizer_state_of`, under any sharding."""
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
    """Return this rank's part of a tensor, on the CPU and marked as a part. Rank 0 has all of an unsharded tensor, the
    others an empty one."""
    if isinstance(tensor, DTensor):
        return {_PART: tensor.to_local().detach().to("cpu", copy=True)}
    return tensor.detach().to("cpu", copy=True) if distributed.rank() == 0 else tensor.new_empty(0, device="cpu")


def joined(parts: Sequence[Any]) -> Any:
    """Return the joined parts of all ranks, in the order of the ranks."""
    first = parts[0]
    if not isinstance(first, dict):
        return first
    if any(_is_part(value) for value in first.values()):
        return JoinedTensors(parts)
    return {name: joined([part[name] for part in parts]) for name in first}


class JoinedTensors(Mapping[str, Any]):
    """Mapping of whole tensors, each joined from its parts on lookup."""

    def __init__(self, parts: Sequence[Mapping[str, Any]]) -> None:
        self._parts = parts

    def __getitem__(self, name: str) -> Any:
        value = self._parts[0][name]
        return torch.cat([part[name][_PART] for part in self._parts]) if _is_part(value) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts[0])

    def __len__(self) -> int:
        return len(self._parts[0])


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {_PART}
