"""One optimizer step of one network, from micro-batches, the same on any number of ranks.

    result = optimizer_step(network, range(len(rows)), loss_fn)

`loss_fn` returns the loss of some rows, already divided by the denominator of all rows of all ranks. Gradients are
therefore sums, over micro-batches by accumulation and over ranks by one all-reduce, and the split of rows changes only
the order of additions. Gradients are clipped by the norm of the whole network. The loss is part of the same sums: if it
or a gradient is not finite on one rank, it is not on any, and none of them steps. A micro-batch that does not fit a GPU
is halved by all ranks together and the step repeated (`r2v.memory.on_device.retry_on_oom`). FSDP or DeepSpeed sums the
gradients of a sharded network, and all ranks run equally many micro-batches; ranks with fewer rows add empty ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from r2v.errors import UsageError
from r2v.hrl.parallel import ranks
from r2v.hrl.parallel.sharded_tensors import (
    TakeFn,
    full_cpu_copy,
    full_tensor,
    is_sharded,
    load_optimizer_state,
    optimizer_state_of,
)
from r2v.hrl.parallel.zero import ZeroEngine
from r2v.hrl.types import LossFn
from r2v.memory.on_device.retry_on_oom import RetryResult, retry_on_oom


class Network:
    """Parameters of one optimizer: AdamW without weight decay, with gradient clipping.

    `setting`: configuration key of the learning rate, for error messages. A DeepSpeed `engine` has its own optimizer
    with the same settings, and clips and steps by itself.
    """

    def __init__(
        self,
        name: str,
        parameters: Iterable[Tensor],
        *,
        lr: float,
        clip: float,
        micro_batch_size: int,
        setting: str,
        engine: ZeroEngine | None = None,
        fused: bool = False,
    ) -> None:
        self.name, self.parameters = name, [cast(nn.Parameter, tensor) for tensor in parameters]
        self.clip, self.micro_batch_size, self.setting, self.lr, self.engine = (
            clip,
            micro_batch_size,
            setting,
            lr,
            engine,
        )
        if engine is None:
            self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, weight_decay=0.0, fused=fused or None)

    def set_rate(self, share: float) -> None:
        """Set the learning rate to this share of the configured one."""
        optimizer = self.optimizer if self.engine is None else self.engine.optimizer
        for group in optimizer.param_groups:
            group["lr"] = self.lr * share

    @property
    def device(self) -> torch.device:
        """Device of the gradients."""
        return self.parameters[0].device

    @property
    def sharded(self) -> bool:
        """True if each rank holds a shard of the network."""
        return self.engine is not None or is_sharded(self.parameters[0])

    def backward(self, loss: Tensor, last: bool) -> None:
        """Accumulate a micro-batch's gradient. `last`: the update's last one."""
        if self.engine is not None:
            self.engine.backward(loss, last)
        else:
            loss.backward()  # type: ignore[no-untyped-call]

    def all_reduce(self, sums: Tensor) -> None:
        """Sum `sums` over ranks, and the gradients unless FSDP or DeepSpeed has summed them."""
        for parameter in self.parameters if self.engine is None else ():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        ranks.all_reduce(
            [
                sums,
                *(parameter.grad for parameter in self.parameters if parameter.grad is not None and not self.sharded),
            ]
        )

    def step(self, loss_is_finite: bool) -> float:
        """Step by the clipped gradient if it and the loss are finite, and clear it. Return its norm before clipping,
        equal on all ranks."""
        if self.engine is not None:
            return self.engine.step(loss_is_finite)
        norm = float(full_tensor(torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)))
        if loss_is_finite and math.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def state(self, take: TakeFn = full_cpu_copy) -> dict[str, Any]:
        """Return the optimizer's state, each tensor converted by `take`. All ranks must call if it is sharded."""
        return optimizer_state_of(self.optimizer, take) if self.engine is None else self.engine.moments(take)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Load a state of `state`, under any sharding."""
        if self.engine is None:
            load_optimizer_state(self.optimizer, saved)
        else:
            self.engine.load_moments(saved)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Result of a step, equal on all ranks."""

    loss: float
    norm: float
    """Of the gradient, before clipping."""
    statistics: tuple[float, ...]
    """Sums of the loss function's statistics."""


def optimizer_step(network: Network, rows: Sequence[int], loss_fn: LossFn, statistics: int = 0) -> StepResult:
    """Take one step on this rank's `rows`. All ranks must call, even without rows. `statistics`: number of the loss
    function's statistics. Raises UsageError, on all ranks and without a step, for a loss or a gradient that is not
    finite: the learning rate is too high, so a restart would end the same way."""
    if network.sharded:
        done = _sharded_passes(network, rows, loss_fn, statistics)
    else:
        done = retry_on_oom(
            lambda size: _passes(network, rows, size, loss_fn, statistics, math.ceil(len(rows) / size)),
            network.micro_batch_size,
            network.parameters,
            phase=network.name,
        )
    sums, network.micro_batch_size = done.result, done.rows
    network.all_reduce(sums)
    loss, *counts = sums.tolist()
    norm = network.step(math.isfinite(loss))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise UsageError(
            f"{network.name}: its loss is {loss:g} and its gradient's norm {norm:g}, so nothing was "
            f"stepped; the last checkpoint is from before. Lower {network.setting} (now "
            f"{network.lr:g}) or hierarchical.grad_clip and start anew"
        )
    return StepResult(loss=loss, norm=norm, statistics=tuple(counts))


def _passes(
    network: Network, rows: Sequence[int], micro_batch_size: int, loss_fn: LossFn, statistics: int, count: int
) -> Tensor:
    """Accumulate the gradients of `count` micro-batches; return (1 + statistics,): the loss and the statistics."""
    sums = torch.zeros(1 + statistics, dtype=torch.float64, device=network.device)
    for number in range(count):
        chosen = rows[number * micro_batch_size : (number + 1) * micro_batch_size]
        # A micro-batch without rows uses row 0 with weight 0, because FSDP's collectives need its backward pass.
        loss, counts = loss_fn(chosen or [0])
        network.backward(loss if chosen else 0.0 * loss, number == count - 1)
        if chosen:
            sums += torch.cat([loss.detach().reshape(1), counts.detach()]).to(sums)
    return sums


def _sharded_passes(network: Network, rows: Sequence[int], loss_fn: LossFn, statistics: int) -> RetryResult[Tensor]:
    """Accumulate as `_passes` does for a sharded network: layers are gathered collectively, so all ranks make equally
    many passes.

    Running out of memory is not caught, because within a pass a rank cannot notify the others: its error ends all.
    """
    size = network.micro_batch_size
    count = ranks.max_over_ranks(math.ceil(len(rows) / size), network.device)
    return RetryResult(result=_passes(network, rows, size, loss_fn, statistics, count), rows=size)
