"""Training state: bytes of weights, gradients and Adam's moments, and the temporaries of an optimizer step.

    trained(3_212_749_824, width=4).total       # 16 bytes a parameter: 47.9 GiB
    trained(3_212_749_824, width=4).at_step     # and a copy of every parameter while torch's foreach AdamW steps: 59.8

Adam keeps two moments in the weights' own type (torch.optim.Adam), in one byte each where it is bitsandbytes'
(paged moments are counted as if they stayed on the GPU).
Sharding splits over ranks as DeepSpeed's ZeRO (arXiv 1910.02054, table 1) and torch's FSDP2 do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from r2v.memory.measurement import ModelSizes

Optimizer = Literal["adamw", "adamw_fused", "adamw_8bit", "paged_adamw_8bit"]
IN_8_BITS: tuple[Optimizer, ...] = ("adamw_8bit", "paged_adamw_8bit")
Shards = Literal["none", "zero2", "zero3", "fsdp"]
WHOLE_WEIGHTS: tuple[Shards, ...] = ("none", "zero2")
"""Of these, the ones under which every rank has all weights."""
Precision = Literal["float32", "bfloat16", "mixed"]
NF4 = 0.5 + 4 / 64
"""Bytes per weight in bitsandbytes' nf4: half a byte, and a float32 scale for each block of 64."""


@dataclass(frozen=True, kw_only=True)
class RoleMemory:
    """Bytes of one role on one GPU."""

    weights: float = 0
    gradients: float = 0
    """Live from the first backward of an update to the end of its step."""
    optimizer: float = 0
    """Moments, and float32 master copies where weights are narrower."""
    step: float = 0
    """Temporaries of the optimizer's step."""
    gathered: float = 0
    """Buffers while it runs: gathered weights of sharded layers, or gradients that are being sent."""

    @property
    def static(self) -> float:
        """Bytes that are there while another role runs: weights and optimizer."""
        return self.weights + self.optimizer

    @property
    def total(self) -> float:
        """Weights, gradients and optimizer: the training state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def at_step(self) -> float:
        """The training state during the optimizer's step."""
        return self.total + self.step


def trained(parameters: float, *, width: int, optimizer: Optimizer = "adamw", embedding: float = 0) -> RoleMemory:
    """The state of so many trained parameters of `width` bytes each. Of these, `embedding` are an embedding's, whose
    moments have 32 bits under an optimizer of 8."""
    size, packed = parameters * width, parameters - embedding
    moments = 2.0 * packed * (1 + 4 / 256) + 8.0 * embedding if optimizer in IN_8_BITS else 2 * size
    return RoleMemory(weights=size, gradients=size, optimizer=moments, step=size if optimizer == "adamw" else 0)


def frozen(sizes: ModelSizes, width: int, *, four_bit: bool = False) -> RoleMemory:
    """Weights alone. In 4 bits the layers' matrices are packed; embeddings, norms and heads keep `width` bytes."""
    packed = sizes.packed if four_bit else 0
    return RoleMemory(weights=packed * NF4 + (sizes.parameters - packed) * width)


def sharded(state: RoleMemory, sizes: ModelSizes, shards: Shards, ranks: int, width: int = 2) -> RoleMemory:
    """The share of one rank of a fully trained model of float32 weights that computes in `width` bytes.

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
