"""FSDP2: language models sharded over the ranks, for updates that exceed a single GPU.

    model = fsdp_sharded(module, device)                  # used like a `BaseModel`
    with model.use_adapter("default") as module:          # training: weights, gradients and moments are sharded
        optimizer_step(network, rows, model.wrap_loss(loss_fn))    # a layer is gathered while it is read, then released
    with model.gathered(), model.use_adapter(None) as module:
        ...                                               # generation: whole, without communication

FSDP gathers a layer collectively, so all ranks must run the model equally often. In generation they do not, because
each rank generates another number of tokens. Generation therefore uses a plain copy of the model, whose weights have
memory only while they are gathered. Gradients are shards of the sum over ranks. Checkpoints are whole, under the names
of an unsharded model: a run may resume with or without sharding. `r2v.hrl.parallel.zero` does the same with DeepSpeed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from r2v import distributed
from r2v.config import HierarchicalConfig
from r2v.errors import UsageError
from r2v.hrl.parallel.base_model import BaseModel
from r2v.hrl.parallel.sharded_tensors import copy_into, full_tensor
from r2v.hrl.types import LossFn


class ShardedModel:
    """Model sharded over the ranks, with the interface of `BaseModel`. All ranks build it from the same model, and call
    `gathered` and train in step.

    `root` runs a function as the sharded model's forward pass. `copy`: plain copy, whose weights have memory only while
    they are gathered; None if every rank has the whole weights.
    """

    def __init__(self, model: Any, root: Callable[[Callable[[], Any]], Any], copy: BaseModel | None) -> None:
        self.shards, self.copy = BaseModel(model), copy
        self._root, self._users = root, 0

    @property
    def model(self) -> Any:
        """The plain model. Its weights have memory only within `gathered`."""
        return (self.copy or self.shards).model

    @contextmanager
    def use_adapter(self, adapter: str | None) -> Iterator[Any]:
        """Yield the plain copy within `gathered`, else the sharded model, as `BaseModel` does."""
        plain = self.copy if self.copy is not None and self._users else self.shards
        with plain.use_adapter(adapter) as model:
            yield model

    def trained(self, adapter: str | None) -> dict[str, nn.Parameter]:
        """Return the trained parameters as `BaseModel` does; sharded, unless every rank has the whole weights."""
        return self.shards.trained(adapter)

    def wrap_loss(self, loss_fn: LossFn) -> LossFn:
        """Return the loss function as the sharded model's forward pass, so that its backward pass gathers weights
        too."""
        return lambda rows: cast(tuple[Tensor, Tensor], self._root(lambda: loss_fn(rows)))

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather the weights on every rank until the block ends; no training in it. All ranks must enter it, but may
        run different code in it."""
        self.gather()
        try:
            yield
        finally:
            self._users -= 1
            if self.copy is not None and not self._users:
                for weight in self.copy.model.parameters():
                    weight.untyped_storage().resize_(0)

    @torch.no_grad()
    def gather(self) -> BaseModel:
        """Return the plain model with the current weights, which stay gathered, for the export after training. All
        ranks must make the first call."""
        if self.copy is not None and not self._users:
            for shard, weight in zip(self.shards.model.parameters(), self.copy.model.parameters(), strict=True):
                weight.untyped_storage().resize_(weight.numel() * weight.element_size())
                weight.copy_(full_tensor(shard))
        self._users += 1
        return self.copy or self.shards


def fsdp_sharded(model: Any, device: str, *, from_rank0: bool = False) -> ShardedModel:
    """Shard the model by FSDP2 over all ranks. Raises UsageError for a model without layers.

    `from_rank0`: only rank 0 has read the model, on its CPU, and the others have allocated it. A GPU then holds one
    layer or weight at a time, never the whole model."""
    copy = emptied_copy(model, device)
    read = [weight.detach() for weight in model.parameters()] if from_rank0 and not distributed.rank() else []
    root = _fully_sharded(model, init_device_mesh(torch.device(device).type, (distributed.ranks(),)))
    if from_rank0:
        _share_out(model, read, device)
    return ShardedModel(model, root, copy)


class RootModule(nn.Module):
    """Module around a model with any function as its forward pass: weights outside the layers (embeddings, head) stay
    gathered from the begin of the forward to the end of the backward pass."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, act: Callable[[], Any]) -> Any:
        """Return the result of `act`, which must include the loss."""
        return act()


def check_sharding(h: HierarchicalConfig, placement: str, model: Any, device: str) -> None:
    """Raise UsageError if this model or placement cannot be sharded, or DeepSpeed is missing."""
    shards = h.shards
    if shards == "none":
        return
    if h.offload:
        raise UsageError(
            f"hierarchical.offload=true: with shards={shards} each GPU has its shard of the reference; set "
            "one of the two, hierarchical.shards=none or offload=false"
        )
    if placement == "split":
        raise UsageError(
            f"hierarchical.shards={shards}: with placement=split the roles of a process stand on several "
            "devices, shards lie on one; set hierarchical.placement=shared or full, or shards=none"
        )
    if shards != "zero2" and getattr(model, "is_loaded_in_4bit", False):
        raise UsageError(
            f"hierarchical.shards={shards}: 4-bit weights cannot be sharded; set "
            "policy.load_in_4bit=false, or hierarchical.shards=zero2 or none"
        )
    if shards == "fsdp":
        return
    if placement == "shared":
        raise UsageError(
            f"hierarchical.shards={shards}: with placement=shared actor and guidance learn on one base, "
            "which cannot have a DeepSpeed engine for each; set hierarchical.placement=full, or "
            "shards=fsdp"
        )
    distributed.require_deepspeed(f"hierarchical.shards={shards}", device, "hierarchical.shards=fsdp")


def emptied_copy(model: Any, device: str) -> BaseModel:
    """Return a copy of a model, before its sharding, whose weights have shapes but no memory. Tied ones stay tied."""
    copies: dict[int, Any] = {}
    for tensor in model.parameters():
        copies[id(tensor)] = nn.Parameter(torch.empty_like(tensor, device=device), requires_grad=False)
        copies[id(tensor)].untyped_storage().resize_(0)
    emptied = copy.deepcopy(model, copies)
    for module in emptied.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    return BaseModel(emptied)


@torch.no_grad()
def _share_out(model: Any, read: list[Tensor], device: str) -> None:
    """Send every rank its shards of the weights that rank 0 has `read`, one weight at a time."""
    import torch.distributed as group

    for number, shard in enumerate(model.parameters()):
        full = read[number].to(device) if read else torch.empty(shard.shape, dtype=shard.dtype, device=device)
        group.broadcast(full, src=0)
        copy_into(shard, full)


def _fully_sharded(model: Any, mesh: DeviceMesh) -> RootModule:
    core = (model.get_base_model() if hasattr(model, "peft_config") else model).base_model
    layers = getattr(core, "layers", None)
    if layers is None:
        raise UsageError(
            f"hierarchical.shards=fsdp: found no layers in this {model.config.model_type} model; take a "
            "Llama, Qwen, Mistral or LFM2 model, or set shards=none"
        )
    root = RootModule(model)
    for module in (*layers, root):
        shard: FSDPModule = fully_shard(module, mesh=mesh)
        shard.set_gradient_divide_factor(1.0)
        shard.set_force_sum_reduction_for_comms(True)  # else NCCL also multiplies by 1
    return root
