"""DeepSpeed ZeRO: language models whose gradients and moments are sharded (ZeRO-2), or the weights too (ZeRO-3).

    model, engine = zero_sharded(module, adapter, stage=3, lr=1e-5, clip=1.0, device="cuda:0")
    network = Network("actor", model.trained(adapter).values(), ..., engine=engine)

Each network has an engine, which keeps float32 master weights, averages gradients over ranks, clips and steps. Losses
here are shares of a sum, so they are multiplied by the number of ranks first. No engine steps if a gradient is not
finite on any rank, because all see the same norm. Under ZeRO-3 layers are gathered collectively, so generation uses a
plain copy (`r2v.hrl.parallel.sharding`); under ZeRO-2 the model is unsharded. Checkpoints are whole: a run may resume
with another `shards`, to float32's precision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from r2v import distributed
from r2v.hrl.parallel.base_model import BaseModel
from r2v.hrl.parallel.sharded_tensors import TakeFn, full_cpu_copy
from r2v.hrl.parallel.sharding import RootModule, ShardedModel, emptied_copy
from r2v.policy.training.sharded_training import skip_shared_memory_build

_MOMENTS = ("exp_avg", "exp_avg_sq")


def zero_sharded(
    model: Any, adapter: str | None, *, stage: int, lr: float, clip: float, device: str
) -> tuple[ShardedModel, ZeroEngine]:
    """Return the model and a DeepSpeed engine for its adapter, or all of it. All ranks build it from the same model."""
    copy = emptied_copy(model, device) if stage == 3 else None
    trained = list(BaseModel(model).trained(adapter).values())
    engine = ZeroEngine(RootModule(model), trained, stage=stage, lr=lr, clip=clip, device=device)
    return ShardedModel(model, engine.forward, copy), engine


class ZeroEngine:
    """DeepSpeed engine of one network: sharded gradients, moments and float32 masters."""

    def __init__(
        self, root: nn.Module, trained: Sequence[Tensor], *, stage: int, lr: float, clip: float, device: str
    ) -> None:
        self._trained, self._stage = trained, stage
        optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
        self._groups = optimizer.state_dict()["param_groups"]
        self._engine = _engine(root, optimizer, stage, clip, device)
        self._begin()

    def forward(self, act: Callable[[], Any]) -> Any:
        """Run `act` as the engine's forward pass and return its result."""
        return self._engine(act)

    def backward(self, loss: Tensor, last: bool) -> None:
        """Accumulate a micro-batch's gradient over micro-batches and ranks. `last`: the update's last one. All ranks
        must call."""
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss * distributed.ranks())

    def step(self, loss_is_finite: bool) -> float:
        """Step by the clipped gradient if loss and gradient are finite. Return its norm before clipping, equal on all
        ranks."""
        if not loss_is_finite:
            self._engine.optimizer.zero_grad()
            self._engine.empty_partition_cache()  # it holds weights prefetched for another pass
            return float("nan")
        self._engine.step()
        return float(self._engine.get_global_grad_norm()) if self._engine.was_step_applied() else float("inf")

    def moments(self, take: TakeFn = full_cpu_copy) -> dict[str, Any]:
        """Return the optimizer's state in the form of a plain AdamW, each full tensor converted by `take`. All ranks
        must call."""
        from deepspeed.utils import safe_get_full_optimizer_state

        steps, state = next(iter(self.optimizer_state.values()))["step"], dict[int, dict[str, Tensor]]()
        for index, tensor in enumerate(self._trained if steps else ()):
            moments = {name: safe_get_full_optimizer_state(tensor, name) for name in _MOMENTS}
            state[index] = {"step": steps.clone()} | {name: take(value) for name, value in moments.items()}
        return {"state": state, "param_groups": self._groups}

    def load_moments(self, saved: Mapping[str, Any]) -> None:
        """Load a state of `moments`, or of a plain optimizer. All ranks must call."""
        self._begin()
        for index, moments in saved["state"].items():
            for name in _MOMENTS:
                self._set_moment(self._trained[index], name, moments[name])
        for moments in self.optimizer_state.values():
            moments["step"].fill_(float(saved["state"][0]["step"]) if saved["state"] else 0.0)

    def refresh_masters(self) -> None:
        """Copy the weights to the float32 masters, after an assignment of the weights."""
        self._engine.optimizer.refresh_fp32_params()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimizer inside the engine."""
        return cast(torch.optim.Optimizer, self._engine.optimizer.optimizer)

    @property
    def optimizer_state(self) -> dict[Tensor, dict[str, Tensor]]:
        """State of that optimizer, by this rank's flat pieces of the parameters."""
        return cast(dict[Tensor, dict[str, Tensor]], self.optimizer.state)

    def _begin(self) -> None:
        """Initialise the moments to 0. The optimizer creates them in its first step, too late for `load_moments`."""
        optimizer = self._engine.optimizer
        pieces = (
            optimizer.single_partition_of_fp32_groups if self._stage == 2 else optimizer.fp32_partitioned_groups_flat
        )
        for piece in pieces:
            moments = {name: torch.zeros_like(piece) for name in _MOMENTS}
            self.optimizer_state[piece] = {"step": torch.tensor(0.0), **moments}
        if self._stage == 2:
            from deepspeed.utils import lazy_init_hp_params_optimizer_state

            for group, piece in zip(optimizer.bit16_groups, pieces, strict=True):
                lazy_init_hp_params_optimizer_state(group, piece, self.optimizer_state)

    def _set_moment(self, tensor: Tensor, name: str, value: Tensor) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        value = value.to(tensor.device, torch.float32)
        if self._stage == 2:
            safe_set_full_optimizer_state(tensor, value, name)
            return
        size = cast(Any, tensor).ds_tensor.numel()  # the last rank's shard is padded
        padded = nn.functional.pad(value.flatten(), (0, size * distributed.ranks() - value.numel()))
        safe_set_local_optimizer_state(tensor, padded.narrow(0, size * distributed.rank(), size), name)


def _engine(root: nn.Module, optimizer: torch.optim.Optimizer, stage: int, clip: float, device: str) -> Any:
    """Return a DeepSpeed engine of this ZeRO stage."""
    import deepspeed
    from deepspeed.accelerator import set_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    if device == "cpu":  # DeepSpeed uses any visible GPU
        set_accelerator(CPU_Accelerator())
        skip_shared_memory_build()
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # Persistence threshold 0: by default ZeRO-3 leaves small weights whole on every rank, all of a tiny model's.
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
