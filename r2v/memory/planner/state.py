"""What a model holds all the time it trains: weights, gradients, Adam's moments, and what its step needs for a moment.

    trained(3_212_749_824, width=4).total       # 16 bytes a parameter: 47.9 GiB
    trained(3_212_749_824, width=4).at_step     # and a copy of every parameter while torch's foreach AdamW steps: 59.8

Adam keeps two moments in the weights' own type (torch.optim.Adam), in one byte each where it is bitsandbytes'.
Sharding splits over ranks as DeepSpeed's ZeRO (arXiv 1910.02054, table 1) and torch's FSDP2 do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from r2v.memory.shapes import Shape

Optimizer = Literal["adamw", "adamw_fused", "adamw_8bit"]
Shards = Literal["none", "zero2", "zero3", "fsdp"]
Precision = Literal["float32", "bfloat16", "mixed"]
NF4 = 0.5 + 4 / 64
"""Bytes per weight in bitsandbytes' nf4: half a byte, and a float32 scale for each block of 64."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Bytes of one role on one GPU."""

    weights: float = 0
    gradients: float = 0
    """There from the first backward of an update to the end of its step."""
    optimizer: float = 0
    """Moments, and master copies where weights are narrower than what is stepped."""
    step: float = 0
    """For a moment in the optimizer's step."""
    gathered: float = 0
    """While it runs: what sharded weights are put together in, or what gradients are sent from."""

    @property
    def resting(self) -> float:
        """Bytes while another role is at work."""
        return self.weights + self.optimizer

    @property
    def total(self) -> float:
        """Weights, gradients and optimizer: what is called the training state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def at_step(self) -> float:
        """The same in the optimizer's step."""
        return self.total + self.step


def trained(parameters: float, *, width: int, optimizer: Optimizer = "adamw") -> State:
    """The state of that many trained parameters of `width` bytes."""
    size = parameters * width
    moments = 2.0 * parameters * (1 + 4 / 256) if optimizer == "adamw_8bit" else 2 * size
    return State(weights=size, gradients=size, optimizer=moments, step=size if optimizer == "adamw" else 0)


def frozen(shape: Shape, width: int, *, four_bit: bool = False) -> State:
    """Weights alone. In 4 bits the layers' matrices are packed, and tables, norms and heads stay `width` wide."""
    packed = shape.matrix_weights if four_bit else 0
    return State(weights=packed * NF4 + (shape.parameters - packed) * width)


def sharded(state: State, shape: Shape, shards: Shards, ranks: int, width: int = 2) -> State:
    """The share of one rank of a fully trained model of float32 weights that computes in `width` bytes.

    none: every rank holds all, and sends gradients from a copy (DistributedDataParallel's buckets). zero2 and zero3
    (DeepSpeed): weights as they compute, float32 masters and moments shared; zero3 shares the weights too. fsdp:
    float32 weights shared, gathered as they compute. Two layers are gathered at a time, this one and the next; the
    tables are one.
    """
    if ranks == 1:
        return state
    if shards == "none":
        return replace(state, gathered=state.gradients)
    unit = max(shape.embedding, 2 * max(shape.layer_parameters(kind) for kind in shape.kinds))
    n, buckets = float(shape.parameters), 2 * width * min(5e8, float(shape.parameters))
    if shards == "fsdp":
        return State(
            weights=4 * n / ranks,
            gradients=4 * n / ranks,
            optimizer=state.optimizer / ranks,
            step=state.step / ranks,
            gathered=2 * width * unit,
        )
    optimizer = (4 * n + state.optimizer) / ranks
    weights = width * n / (ranks if shards == "zero3" else 1)
    return State(
        weights=weights,
        gradients=width * n / ranks,
        optimizer=optimizer,
        step=4 * n / ranks,
        gathered=buckets + (width * unit if shards == "zero3" else 0),
    )
