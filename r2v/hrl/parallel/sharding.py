"""Language models in parts, one with every rank: what no GPU would hold whole while it learns (FSDP2;
`r2v.hrl.parallel.zero`
for DeepSpeed's way).

    body = Sharded(model, mesh)                      # in place of a `Base`
    with body.wearing("default") as model:           # learning: weights, gradients and moments lie in parts
        update(network, rows, body.through(part))    # a layer is put together while it is read, then let go again
    with body.together(), body.wearing(None) as model:
        ...                                          # speaking: whole, without a word to the other ranks

Ranks put a layer together by all asking for it, so all must go through the model as often. Those that speak do not:
each says another number of tokens. What speaks is therefore a plain model of the same make, whose weights have memory
only while they are together. Gradients come out as the parts of their sum over ranks. What is written to disk is
whole, under the names of an unsharded model: a run may go on with its weights in parts or not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from r2v import distributed
from r2v.config import HierarchicalConfig
from r2v.errors import UsageError
from r2v.hrl.models.bases import Base

if TYPE_CHECKING:
    from r2v.hrl.training.optimizer_step import Part


class Sharded:
    """A model in parts, used like a `Base`. All ranks make it of the same model, call `together` at the same time, and
    learn in step."""

    def __init__(self, model: Any, mesh: DeviceMesh) -> None:
        self._twin = Twin(model)
        self._root = _fully_sharded(model, mesh)
        self._parts = Base(model)

    @property
    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Every weight: this rank's part of it, and its place in the plain model."""
        return list(zip(self._parts.model.parameters(), self._twin.base.model.parameters(), strict=True))

    @property
    def model(self) -> Any:
        """The plain model, whose weights are there within `together`."""
        return self._twin.base.model

    @contextmanager
    def wearing(self, adapter: str | None) -> Iterator[Any]:
        """As of a `Base`: the plain model within `together`, the one that learns otherwise."""
        with (self._twin.base if self._twin.users else self._parts).wearing(adapter) as model:
            yield model

    def trained(self, adapter: str | None) -> dict[str, nn.Parameter]:
        """As of a `Base`; in parts."""
        return self._parts.trained(adapter)

    def through(self, part: Part) -> Part:
        """What `part` says of rows, in a way that its backward pass finds the weights too."""
        return lambda chosen: cast(tuple[Tensor, Tensor], self._root(lambda: part(chosen)))

    @contextmanager
    def together(self) -> Iterator[None]:
        """The weights are whole on every rank until the block ends; nothing learns in it. All ranks must come to it,
        and may do there what they like."""
        self.put_together()
        try:
            yield
        finally:
            self._twin.let_go()

    def put_together(self) -> Base:
        """The plain model with the weights as they are now, which stay whole: what a finished training hands on. All
        ranks must ask, the first time."""
        return self._twin.put_together()


class Twin:
    """A plain model of the same make as one that is about to be cut: its weights have memory only while somebody
    uses them."""

    def __init__(self, model: Any) -> None:
        self.base = Base(_emptied(model))
        self.users = 0
        self._parts = model

    @torch.no_grad()
    def put_together(self) -> Base:
        """The plain model with the weights as they are now, until as many have let it go."""
        if not self.users:
            for part, place in zip(self._parts.parameters(), self.base.model.parameters(), strict=True):
                place.untyped_storage().resize_(place.numel() * place.element_size())
                place.copy_(whole(part))
        self.users += 1
        return self.base

    def let_go(self) -> None:
        """One user less."""
        self.users -= 1
        if not self.users:
            for place in self.base.model.parameters():
                place.untyped_storage().resize_(0)


class Root(nn.Module):
    """A model with whatever is done with it as its forward pass: weights that no layer has (embeddings, head) are there
    from its beginning to the end of its backward pass."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, act: Callable[[], Any]) -> Any:
        """What `act` returns; the loss must be among it."""
        return act()


def mesh_of(device: str) -> DeviceMesh:
    """All ranks in a row, each with its `device`."""
    return init_device_mesh(torch.device(device).type, (distributed.ranks(),))


def check(h: HierarchicalConfig, placement: str, model: Any, device: str) -> None:
    """Raises UsageError where a placement of this model cannot lie in parts, or what would cut it is not there."""
    shards = h.shards
    if shards == "none":
        return
    if h.offload:
        raise UsageError(
            f"hierarchical.offload=true: with shards={shards} each GPU has its part of the reference; set "
            "one of the two, hierarchical.shards=none or offload=false"
        )
    if placement == "split":
        raise UsageError(
            f"hierarchical.shards={shards}: with placement=split the roles of a process stand on several "
            "devices, parts lie on one; set hierarchical.placement=shared or full, or shards=none"
        )
    if getattr(model, "is_loaded_in_4bit", False):
        raise UsageError(
            f"hierarchical.shards={shards}: 4-bit weights are not cut into parts; set "
            "policy.load_in_4bit=false, or hierarchical.shards=none"
        )
    if shards == "fsdp":
        return
    if placement == "shared":
        raise UsageError(
            f"hierarchical.shards={shards}: with placement=shared actor and guidance learn on one base, "
            "which cannot have an engine of DeepSpeed's for each; set hierarchical.placement=full, or "
            "shards=fsdp"
        )
    distributed.require_deepspeed(f"hierarchical.shards={shards}", device, "hierarchical.shards=fsdp")


def _emptied(model: Any) -> Any:
    """A copy of a model whose weights have shapes and no memory. Tied ones are tied in it too."""
    memo: dict[int, Any] = {}
    for tensor in model.parameters():
        memo[id(tensor)] = nn.Parameter(torch.empty_like(tensor), requires_grad=False)
        memo[id(tensor)].untyped_storage().resize_(0)
    return copy.deepcopy(model, memo)


def _fully_sharded(model: Any, mesh: DeviceMesh) -> Root:
    core = (model.get_base_model() if hasattr(model, "peft_config") else model).base_model
    layers = getattr(core, "layers", None)
    if layers is None:
        raise UsageError(
            f"hierarchical.shards=fsdp: found no layers in this {model.config.model_type} model; take a "
            "Llama, Qwen, Mistral or LFM2 model, or set shards=none"
        )
    root = Root(model)
    for module in (*layers, root):
        shard: FSDPModule = fully_shard(module, mesh=mesh)
        shard.set_gradient_divide_factor(1.0)
        shard.set_force_sum_reduction_for_comms(True)  # else NCCL multiplies by 1 on the way
    return root


def in_parts(tensor: Tensor) -> bool:
    """Whether other ranks hold the rest of it."""
    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """A tensor in one piece; of one in parts all ranks must ask."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    if not hasattr(tensor, "ds_id"):
        return tensor
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([tensor]):
        return tensor.detach().clone()


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Of the whole tensor; DeepSpeed's parts keep it under a name of their own."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


@torch.no_grad()
def put(tensor: Tensor, value: Tensor) -> None:
    """A tensor, in parts or not, takes a value that every rank has whole."""
    if not hasattr(tensor, "ds_id"):
        tensor.copy_(like(value, tensor))
        return
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([tensor], modifier_rank=0):
        tensor.copy_(value)


def collected(tensor: Tensor, here: bool = True) -> Tensor:
    """A whole copy on the CPU. Where it is not wanted `here`, this rank only gives its part, and gets nothing: several
    on one machine would need its memory several times."""
    found = whole(tensor).detach()
    return found.to("cpu", copy=True) if here else found.new_empty(0)


def like(tensor: Tensor, model: Tensor) -> Tensor:
    """A whole tensor, which every rank has, as `model` lies: this rank's part of it, or all."""
    if not isinstance(model, DTensor) or tensor.shape != model.shape:
        return tensor
    return distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements, src_data_rank=None)


def state_of(optimizer: torch.optim.Optimizer, here: bool = True) -> dict[str, Any]:
    """What a checkpoint holds of an optimizer: whole tensors (`collected`). All ranks must ask where its parameters
    are in parts."""
    held = optimizer.state_dict()
    if not any(in_parts(one) for group in optimizer.param_groups for one in group["params"]):
        return held
    state = {
        at: {name: collected(value, here) if isinstance(value, Tensor) else value for name, value in moments.items()}
        for at, moments in held["state"].items()
    }
    return {**held, "state": state}


def load_state(optimizer: torch.optim.Optimizer, held: Mapping[str, Any]) -> None:
    """Be what `state_of` was taken of, whichever way its parameters lay."""
    own = [one for group in optimizer.param_groups for one in group["params"]]
    state = {
        at: {name: like(value, own[at]) if isinstance(value, Tensor) else value for name, value in moments.items()}
        for at, moments in held["state"].items()
    }
    optimizer.load_state_dict({**held, "state": state})
