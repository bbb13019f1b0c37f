"""One update of one network: micro-batches in, a step out, for any number of ranks the same one.

    stepped = update(network, range(len(rows)), part=lambda chosen: ...)

`part` gives the loss of some rows, already divided by the denominator of all rows of all ranks, and whatever is to be
added up beside it. So gradients are sums: over micro-batches by backward, over ranks by one all_reduce, and how rows
were cut or shared changes nothing but the order of additions. The norm that a gradient is clipped to is that of the
whole network. The loss travels in the same sums: where it or a gradient is not a number on one rank, it is so on all
of them, and none of them steps. A micro-batch that does not fit a GPU is halved by all ranks together, and the update
done again (`r2v.memory.retry`). Of a network in parts (`r2v.hrl.sharding`) FSDP adds the gradients up, and all ranks
take as many micro-batches: one with fewer rows fills up with some that count nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from r2v.errors import UsageError
from r2v.hrl import ranks
from r2v.hrl.sharding import in_parts, whole
from r2v.memory.retry import Done, redo

Part = Callable[[Sequence[int]], tuple[Tensor, Tensor]]
"""Some rows' share of the loss, and (M,) figures that are added up over all rows. Row 0 there always is."""


class Network:
    """What one optimizer moves: AdamW without decay at a constant rate, its gradient clipped by itself.

    `setting` is the key of the rate, which an error names; `micro` the rows at a time.
    """

    def __init__(self, name: str, parameters: Iterable[Tensor], *, lr: float, clip: float, micro: int,
                 setting: str) -> None:
        self.name, self.parameters = name, [cast(nn.Parameter, tensor) for tensor in parameters]
        self.clip, self.micro, self.setting = clip, micro, setting
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, weight_decay=0.0)

    @property
    def device(self) -> torch.device:
        """Where its gradients are."""
        return self.parameters[0].device

    @property
    def in_parts(self) -> bool:
        """Whether each rank holds a part of it."""
        return in_parts(self.parameters[0])


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """What an update came to, on all ranks the same."""

    loss: float
    norm: float
    """Of the gradient, before it was clipped."""
    counted: tuple[float, ...]
    """The sums of the parts' figures."""


def update(network: Network, rows: Sequence[int], part: Part, figures: int = 0) -> Stepped:
    """Step once on this rank's `rows`. All ranks must call, those without rows too; `figures` is how many a part
    counts. Raises UsageError, on all ranks and with nothing stepped, for a loss or a gradient that is not finite: a
    rate too high, which doing the same again would not mend."""
    done = _in_step(network, rows, part, figures) if network.in_parts else redo(
        lambda micro: _accumulate(network, rows, micro, part, figures), network.micro, network.parameters,
        phase=network.name)
    sums, network.micro = done.result, done.rows
    for parameter in network.parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    ranks.add_up([sums, *(parameter.grad for parameter in network.parameters
                          if parameter.grad is not None and not network.in_parts)])
    loss, *counted = sums.tolist()
    norm = float(whole(torch.nn.utils.clip_grad_norm_(network.parameters, network.clip)))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        network.optimizer.zero_grad(set_to_none=True)
        raise UsageError(f"{network.name}: its loss is {loss:g} and its gradient's norm {norm:g}, so nothing was "
                         f"stepped; the last checkpoint is from before. Lower {network.setting} (now "
                         f"{network.optimizer.param_groups[0]['lr']:g}) or hierarchical.grad_clip and start anew")
    network.optimizer.step()
    network.optimizer.zero_grad(set_to_none=True)
    return Stepped(loss=loss, norm=norm, counted=tuple(counted))


def _accumulate(network: Network, rows: Sequence[int], micro: int, part: Part, figures: int) -> Tensor:
    """Add up the gradients of all rows; (1 + figures,) the loss and what was counted."""
    sums = torch.zeros(1 + figures, dtype=torch.float64, device=network.device)
    for start in range(0, len(rows), micro):
        loss, counted = part(rows[start:start + micro])
        loss.backward()  # type: ignore[no-untyped-call]
        sums += torch.cat([loss.detach().reshape(1), counted.detach()]).to(sums)
    return sums


def _in_step(network: Network, rows: Sequence[int], part: Part, figures: int) -> Done[Tensor]:
    """The same for a network in parts: ranks put it together in every pass, so they make as many. One that runs out of
    memory could not tell the others within a pass: its error ends them all."""
    own = math.ceil(len(rows) / network.micro)
    idle = ranks.most(own, network.device) - own
    sums = _accumulate(network, rows, network.micro, part, figures)
    for _ in range(idle):
        (0.0 * part([0])[0]).backward()  # type: ignore[no-untyped-call]
    return Done(result=sums, rows=network.micro)
