"""Seconds of local models on a GPU: estimated operations over the card's rate, nothing measured.

Assumptions: a token costs 2 operations per parameter multiplied with it; training three times that, four with gradient
checkpointing; a card reaches UTILISATION of its datasheet's dense 16-bit operations, and generating a token reads all
weights once at BANDWIDTH of its datasheet's bandwidth. `r2v.pipeline.plan` counts the tokens of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from r2v.memory.models import ParameterCounts

CARDS: dict[str, tuple[float, float]] = {
    "v100": (125e12, 0.9e12),
    "a10": (125e12, 0.6e12),
    "a100": (312e12, 2.0e12),
    "a6000": (155e12, 0.77e12),
    "l4": (121e12, 0.3e12),
    "l40s": (362e12, 0.86e12),
    "h100": (989e12, 3.35e12),
    "h200": (989e12, 4.8e12),
    "h20": (148e12, 4.0e12),
}
"""Dense 16-bit operations and memory bytes per second, from vendors' datasheets (tensor cores, no sparsity)."""
ASSUMED = "a100"
UTILISATION, BANDWIDTH = 0.35, 0.5
"""Assumed shares of the datasheet's figures."""


@dataclass(frozen=True, kw_only=True)
class StageTokens:
    """Tokens computed by local models."""

    trained: float = 0
    """Tokens of forward and backward passes."""
    read: float = 0
    """Tokens of forward passes only."""
    waves: float = 0
    """Generation steps, each of one token for a whole batch."""


def seconds_of(
    work: StageTokens, model: ParameterCounts, *, card: str = "", gpus: int = 1, checkpointing: bool = False
) -> float:
    """Return the seconds of these tokens on a type of card, ASSUMED if unknown; training uses all GPUs, all else
    one."""
    operations, bandwidth = CARDS.get(card.lower(), CARDS[ASSUMED])
    cost = 2.0 * model.per_token * (work.trained * (4 if checkpointing else 3) + work.read)
    added = work.waves * model.total * 2 / (bandwidth * BANDWIDTH)
    return cost / (operations * UTILISATION * (gpus if work.trained else 1)) + added
