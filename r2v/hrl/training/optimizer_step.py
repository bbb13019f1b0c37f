"""One update of one network: micro-batches in, a step out, for any number of ranks the same one.

    stepped = update(network, range(len(rows)), part=lambda chosen: ...)

`part` gives the loss of some rows, already divided by the denominator of all rows of all ranks, and whatever is to be
added up beside it. So gradients are sums: over micro-batches by backward, over ranks by one all_reduce, and how rows
were cut or shared changes nothing but the order of additions. The norm that a gradient is clipped to is that of the
whole network. The loss travels in the same sums: where it or a gradient is not a number on one rank, it is so on all
of them, and none of them steps. A micro-batch that does not fit a GPU is halved by all ranks together, and the update
done again (`r2v.memory.retry_on_oom`). Of a network in parts (`r2v.hrl.parallel.sharding`, `r2v.hrl.parallel.zero`)
FSDP or DeepSpeed adds the
gradients up, and all ranks take as many micro-batches: one with fewer rows fills up with some that count nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from r2v.errors import UsageError
from r2v.hrl.parallel import ranks
from r2v.hrl.parallel.sharding import in_parts, load_state, state_of, whole
from r2v.memory.retry_on_oom import RetryResult, retry_on_oom

if TYPE_CHECKING:
    from r2v.hrl.parallel.zero import Zero

Part = Callable[[Sequence[int]], tuple[Tensor, Tensor]]
"""Some rows' share of the loss, and (M,) figures that are added up over all rows. Row 0 there always is."""


class Network:
    """What one optimizer moves: AdamW without decay at a constant rate, its gradient clipped by itself.

    `setting` is the key of the rate, which an error names; `micro` the rows at a time. An `engine` of DeepSpeed's has
    an optimizer of its own, of the same settings, and clips and steps by itself.
    """

    def __init__(
        self,
        name: str,
        parameters: Iterable[Tensor],
        *,
        lr: float,
        clip: float,
        micro: int,
        setting: str,
        engine: Zero | None = None,
    ) -> None:
        self.name, self.parameters = name, [cast(nn.Parameter, tensor) for tensor in parameters]
        self.clip, self.micro, self.setting, self.lr, self.engine = clip, micro, setting, lr, engine
        if engine is None:
            self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, weight_decay=0.0)

    @property
    def device(self) -> torch.device:
        """Where its gradients are."""
        return self.parameters[0].device

    @property
    def in_parts(self) -> bool:
        """Whether each rank holds a part of it."""
        return self.engine is not None or in_parts(self.parameters[0])

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add a micro-batch's gradient to the others'; `last` of an update."""
        if self.engine is not None:
            self.engine.backward(loss, last)
        else:
            loss.backward()  # type: ignore[no-untyped-call]

    def add_up(self, sums: Tensor) -> None:
        """Over ranks: `sums`, and the gradients where nobody else does it."""
        for parameter in self.parameters if self.engine is None else ():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        ranks.add_up(
            [
                sums,
                *(parameter.grad for parameter in self.parameters if parameter.grad is not None and not self.in_parts),
            ]
        )

    def step(self, sound: bool) -> float:
        """Step by the clipped gradient where it is finite and the loss was `sound`, and forget it; its norm before it
        was clipped, the same on all ranks."""
        if self.engine is not None:
            return self.engine.step(sound)
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)))
        if sound and math.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def state(self, here: bool = True) -> dict[str, Any]:
        """Its optimizer's, whole (`state_of`). All ranks must ask where it is in parts."""
        return state_of(self.optimizer, here) if self.engine is None else self.engine.moments(here)

    def load(self, held: Mapping[str, Any]) -> None:
        """Be what `state` was taken of, whichever way it lay."""
        if self.engine is None:
            load_state(self.optimizer, held)
        else:
            self.engine.take(held)


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
    done = (
        _in_step(network, rows, part, figures)
        if network.in_parts
        else retry_on_oom(
            lambda micro: _accumulate(network, rows, micro, part, figures),
            network.micro,
            network.parameters,
            phase=network.name,
        )
    )
    sums, network.micro = done.result, done.rows
    network.add_up(sums)
    loss, *counted = sums.tolist()
    norm = network.step(math.isfinite(loss))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise UsageError(
            f"{network.name}: its loss is {loss:g} and its gradient's norm {norm:g}, so nothing was "
            f"stepped; the last checkpoint is from before. Lower {network.setting} (now "
            f"{network.lr:g}) or hierarchical.grad_clip and start anew"
        )
    return Stepped(loss=loss, norm=norm, counted=tuple(counted))


def _accumulate(network: Network, rows: Sequence[int], micro: int, part: Part, figures: int) -> Tensor:
    """Add up the gradients of all rows; (1 + figures,) the loss and what was counted."""
    return _passes(network, rows, micro, part, figures, math.ceil(len(rows) / micro))


def _passes(network: Network, rows: Sequence[int], micro: int, part: Part, figures: int, count: int) -> Tensor:
    """That many micro-batches. Those without rows of their own count nothing."""
    sums = torch.zeros(1 + figures, dtype=torch.float64, device=network.device)
    for number in range(count):
        chosen = rows[number * micro : (number + 1) * micro]
        loss, counted = part(chosen or [0])
        network.backward(loss if chosen else 0.0 * loss, number == count - 1)
        if chosen:
            sums += torch.cat([loss.detach().reshape(1), counted.detach()]).to(sums)
    return sums


def _in_step(network: Network, rows: Sequence[int], part: Part, figures: int) -> RetryResult[Tensor]:
    """The same for a network in parts: ranks put it together in every pass, so they make as many. One that runs out of
    memory could not tell the others within a pass: its error ends them all."""
    most = ranks.most(math.ceil(len(rows) / network.micro), network.device)
    return RetryResult(result=_passes(network, rows, network.micro, part, figures, most), rows=network.micro)
