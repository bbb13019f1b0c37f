"""Training state: bytes of weights, gradients, Adam's moments, and temporaries of the optimizer's step.

    trained(3_212_749_824, width=4).total       # 16 bytes a parameter: 47.9 GiB
    trained(3_212_749_824, width=4).at_step     # and a copy of every parameter while torch's foreach AdamW steps: 59.8

Adam keeps two moments in the weights' own type (torch.optim.Adam), bitsandbytes' in one byte each (paged moments are
counted as if on the GPU). Sharding is that of DeepSpeed's ZeRO (arXiv 1910.02054, table 1) and torch's FSDP2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from r2v.memory.measurement import ModelSizes

Optimizer = Literal["adamw", "adamw_fused", "adamw_8bit", "paged_adamw_8bit"]
IN_8_BITS: tuple[Optimizer, ...] = ("adamw_8bit", "paged_adamw_8bit")
Shards = Literal["none", "zero2", "zero3", "fsdp"]
WHOLE_WEIGHTS: tuple[Shards, ...] = ("none", "zero2")
"""Values of Shards under which every rank has all weights."""
Precision = Literal["float32", "bfloat16", "mixed"]
NF4 = 0.5 + 4 / 64
"""Bytes per weight in bitsandbytes' nf4: half a byte, and a float32 scale for each block of 64."""


@dataclass(frozen=True, kw_only=True)
class RoleMemory:
    """Bytes of one role on one GPU."""

    weights: float = 0
    gradients: float = 0
    """Gradients, live from the first backward of an update to the end of its step."""
    optimizer: float = 0
    """Moments, and float32 master copies of narrower weights."""
    step: float = 0
    """Temporaries of the optimizer's step."""
    gathered: float = 0
    """Buffers while the role runs: gathered weights of sharded layers, or gradients being sent."""

    @property
    def static(self) -> float:
        """Bytes that are live while another role runs: weights and optimizer."""
        return self.weights + self.optimizer

    @property
    def total(self) -> float:
        """Training state: weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer

    @property
    def at_step(self) -> float:
        """Training state during the optimizer's step."""
        return self.total + self.step


def trained(parameters: float, *, width: int, optimizer: Optimizer = "adamw", embedding: float = 0) -> RoleMemory:
    """Return the state of trained parameters of `width` bytes each, `embedding` of them an embedding's, whose moments
    have 32 bits under an 8-bit optimizer."""
    size, packed = parameters * width, parameters - embedding
    moments = 2.0 * packed * (1 + 4 / 256) + 8.0 * embedding if optimizer in IN_8_BITS else 2 * size
    return RoleMemory(weights=size, gradients=size, optimizer=moments, step=size if optimizer == "adamw" else 0)


def frozen(sizes: ModelSizes, width: int, *, four_bit: bool = False) -> RoleMemory:
    """Return the state of frozen weights. In 4 bits the layers' matrices are packed; embeddings, norms and heads keep
    `width` bytes per weight."""
    packed = sizes.packed if four_bit else 0
    return RoleMemory(weights=packed * NF4 + (sizes.parameters - packed) * width)


def sharded(state: RoleMemory, sizes: ModelSizes, shards: Shards, ranks: int, width: int = 2) -> RoleMemory:
    """Return one rank's share of a fully trained model of float32 weights that computes in `width` bytes.

    none: every rank holds everything, and sends gradients from a copy (DistributedDataParallel's buckets). zero2 and
    zero3 (DeepSpeed): weights in the computed type, float32 masters and moments sharded; zero3 shards the weights too.
    fsdp: float32 weights sharded, gathered in the computed type. Two layers are gathered at a time, the running one
    and the next (prefetched); the embedding counts as one.
    """
    if ranks == 1:
        return state
    if shards == "none":
        return replace(state, gathered=state.gradients)
    unit = max(sizes.embedding, 2 * sizes.layer)
    n = float(sizes.parameters)
    buckets = 2 * width * min(5e8, n)  # DeepSpeed's default bucket of 5e8 elements, and one on its way
    if shards == "fsdp":
        return RoleMemory(
            weights=4 * n / ranks,
            gradients=4 * n / ranks,
            optimizer=state.optimizer / ranks,
            step=state.step / ranks,
            gathered=2 * width * unit,
        )
    optimizer = (4 * n + state.optimizer) / ranks
    weights = width * n / (ranks if shards == "zero3" else 1)
    return RoleMemory(
        weights=weights,
        gradients=width * n / ranks,
        optimizer=optimizer,
        step=4 * n / ranks,
        gathered=buckets + (width * unit if shards == "zero3" else 0),
    )
