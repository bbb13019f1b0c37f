"""Seconds that local models take on a GPU: operations over what the card does of them, and nothing measured.

    seconds_of(StageTokens(read=2e6), counted("meta-llama/Llama-3.2-1B"), card="h100")

Basis: a token costs 2 operations a parameter that it meets; training three times that, four with gradient
checkpointing; a card does UTILISATION of its datasheet's dense 16-bit operations, and adding a token reads all weights
once at BANDWIDTH of its datasheet's bandwidth. The tokens of a stage are counted in `r2v.pipeline.plan`.
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
"""Dense 16-bit operations and bytes of memory a second, by the vendor's datasheets (tensor cores, no sparsity)."""
ASSUMED = "a100"
UTILISATION, BANDWIDTH = 0.35, 0.5
"""Shares of the datasheet's figures: assumptions."""


@dataclass(frozen=True, kw_only=True)
class StageTokens:
    """Tokens that local models compute."""

    trained: float = 0
    """Tokens that go forward and backward."""
    read: float = 0
    """Tokens that go forward only."""
    waves: float = 0
    """Tokens that are added one after another, each to a whole batch."""


def seconds_of(
    work: StageTokens, model: ParameterCounts, *, card: str = "", gpus: int = 1, checkpointing: bool = False
) -> float:
    """Seconds that these tokens take on a type of card, ASSUMED where it is not known; training uses all GPUs,
    everything else one."""
    operations, bandwidth = CARDS.get(card.lower(), CARDS[ASSUMED])
    cost = 2.0 * model.per_token * (work.trained * (4 if checkpointing else 3) + work.read)
    added = work.waves * model.total * 2 / (bandwidth * BANDWIDTH)
    return cost / (operations * UTILISATION * (gpus if work.trained else 1)) + added
