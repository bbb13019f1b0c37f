"""Language models as DeepSpeed trains them: gradients and moments in parts, one with every rank (ZeRO-2), or the
weights too (ZeRO-3).

    body = Zero(model, adapter, stage=3, lr=1e-5, clip=1.0, device="cuda:0")      # in place of a `Base`
    network = Network("actor", body.trained(adapter).values(), ..., engine=body)

Each network is an engine of its own, which makes float32 masters of what it trains, averages gradients over ranks,
clips and steps. Losses here are shares of a sum, so they are multiplied by the ranks first. An engine takes no step by
a gradient that is not finite, on any rank, since all of them look at the same norm. Under ZeRO-3 ranks put layers
together by all asking, so what speaks is a plain twin (`r2v.hrl.parallel.sharding`); under ZeRO-2 the model is whole
anyway.
What is written to disk is whole: a run may go on with another `shards`, to float32's precision.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from r2v import distributed
from r2v.hrl.models.bases import Base
from r2v.hrl.parallel.sharding import Root, Twin

if TYPE_CHECKING:
    from r2v.hrl.training.optimizer_step import Part

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Zero:
    """A model with an engine, used like a `Base`. All ranks make it of the same model, call `together` at the same
    time, and learn in step."""

    def __init__(self, model: Any, adapter: str | None, *, stage: int, lr: float, clip: float, device: str) -> None:
        self._twin = Twin(model) if stage == 3 else None
        self._parts = Base(model)
        self._learning = list(self._parts.trained(adapter).values())
        optimizer = torch.optim.AdamW(self._learning, lr=lr, weight_decay=0.0)
        self._groups = optimizer.state_dict()["param_groups"]
        self._engine = _engine(Root(model), optimizer, stage, clip, device)
        self._begin()

    @property
    def model(self) -> Any:
        """The plain model; under ZeRO-3 its weights are there within `together`."""
        return self._parts.model if self._twin is None else self._twin.base.model

    @contextmanager
    def wearing(self, adapter: str | None) -> Iterator[Any]:
        """As of a `Base`: the plain model within `together`, the one that learns otherwise."""
        twin = self._twin
        with (twin.base if twin is not None and twin.users else self._parts).wearing(adapter) as model:
            yield model

    def trained(self, adapter: str | None) -> dict[str, nn.Parameter]:
        """As of a `Base`; in parts under ZeRO-3."""
        return self._parts.trained(adapter)

    def through(self, part: Part) -> Part:
        """What `part` says of rows, in a way that its backward pass finds the weights too."""
        return lambda chosen: cast(tuple[Tensor, Tensor], self._engine(lambda: part(chosen)))

    @contextmanager
    def together(self) -> Iterator[None]:
        """The weights are whole on every rank until the block ends; nothing learns in it. All ranks must come to it,
        and may do there what they like."""
        self.put_together()
        try:
            yield
        finally:
            if self._twin is not None:
                self._twin.let_go()

    def put_together(self) -> Base:
        """The plain model with the weights as they are now, which stay whole: what a finished training hands on. All
        ranks must ask, the first time."""
        return self._parts if self._twin is None else self._twin.put_together()

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add up a micro-batch's gradient, over micro-batches and ranks; `last` of an update. All ranks must call."""
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss * distributed.ranks())

    def step(self, sound: bool) -> float:
        """Step by the clipped gradient, if the loss was `sound` and the gradient is finite; its norm before it was
        clipped, on all ranks the same."""
        if not sound:
            self._engine.optimizer.zero_grad()
            self._engine.empty_partition_cache()  # weights on their way for a next pass
            return float("nan")
        self._engine.step()
        return float(self._engine.get_global_grad_norm()) if self._engine.was_step_applied() else float("inf")

    def moments(self, here: bool = True) -> dict[str, Any]:
        """What a checkpoint holds of the optimizer, as of a plain AdamW of whole tensors. All ranks must ask; those
        that do not want it `here` get empty tensors."""
        from deepspeed.utils import safe_get_full_optimizer_state

        steps, state = next(iter(self.optimizer_state.values()))["step"], dict[int, dict[str, Tensor]]()
        for at, tensor in enumerate(self._learning if steps else ()):
            found = {name: safe_get_full_optimizer_state(tensor, name) for name in _MOMENTS}
            state[at] = {"step": steps.clone()} | {
                name: value.to("cpu", copy=True) if here else value.new_empty(0) for name, value in found.items()
            }
        return {"state": state, "param_groups": self._groups}

    def take(self, held: Mapping[str, Any]) -> None:
        """Be what `moments`, or the state of a plain optimizer, was taken of. All ranks must have it."""
        self._begin()
        for at, moments in held["state"].items():
            for name in _MOMENTS:
                self._put(self._learning[at], name, moments[name])
        for moments in self.optimizer_state.values():
            moments["step"].fill_(float(held["state"][0]["step"]) if held["state"] else 0.0)

    def refresh(self) -> None:
        """Masters become what the weights are, after somebody has set these."""
        self._engine.optimizer.refresh_fp32_params()

    @property
    def optimizer_state(self) -> dict[Tensor, dict[str, Tensor]]:
        """Of the optimizer inside: of each of this rank's flat pieces."""
        return cast(dict[Tensor, dict[str, Tensor]], self._engine.optimizer.optimizer.state)

    def _begin(self) -> None:
        """An optimizer that has taken no step. Left to itself it would have no moments to load until the first."""
        inside = self._engine.optimizer
        pieces = inside.single_partition_of_fp32_groups if self._twin is None else inside.fp32_partitioned_groups_flat
        for piece in pieces:
            moments = {name: torch.zeros_like(piece) for name in _MOMENTS}
            self.optimizer_state[piece] = {"step": torch.tensor(0.0), **moments}
        if self._twin is None:
            from deepspeed.utils import lazy_init_hp_params_optimizer_state

            for group, piece in zip(inside.bit16_groups, pieces, strict=True):
                lazy_init_hp_params_optimizer_state(group, piece, self.optimizer_state)

    def _put(self, tensor: Tensor, name: str, value: Tensor) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        value = value.to(tensor.device, torch.float32)
        if self._twin is None:
            safe_set_full_optimizer_state(tensor, value, name)
            return
        size = cast(Any, tensor).ds_tensor.numel()  # the last rank's part is filled up
        padded = nn.functional.pad(value.flatten(), (0, size * distributed.ranks() - value.numel()))
        safe_set_local_optimizer_state(tensor, padded.narrow(0, size * distributed.rank(), size), name)


def _engine(root: nn.Module, optimizer: torch.optim.Optimizer, stage: int, clip: float, device: str) -> Any:
    """DeepSpeed's of this stage. Its threshold under which ZeRO-3 leaves weights whole is 0: nothing is."""
    import deepspeed
    from deepspeed.accelerator import set_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    if device == "cpu":  # DeepSpeed takes whatever GPU it sees
        set_accelerator(CPU_Accelerator())
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": clip,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    if stage == 3:
        # `initialize` would partition the weights itself, with Init(dtype=the model's), which Init obeys only where
        # the accelerator supports fp16 (a CPU with AVX512-FP16 does) and then refuses float64. Without a dtype Init
        # takes float32 from the configuration on every machine; the weights keep their own type either way.
        deepspeed.zero.Init(module=root, config_dict_or_path=config)
    engine, *_ = deepspeed.initialize(model=root, optimizer=optimizer, config=config)
    return engine
