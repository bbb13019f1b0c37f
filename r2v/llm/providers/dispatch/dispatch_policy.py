"""How questions travel: in batches, by direct calls, or whichever is worth it; and how long anybody waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["batch", "concurrent", "auto"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Times are seconds. The limits of the provider hold besides."""

    mode: Mode = "auto"
    max_usd: float | None = None
    """Hard cap."""
    batch_size: int | None = None
    """Requests in one batch, at most."""
    max_concurrent: int = 32
    """Direct calls at the same time, at most."""
    queued_tokens: int | None = None
    """Prompt tokens in batches that have not ended, at most; None: found out by being refused."""
    flush_seconds: float = 30.0
    """A question waits so long for company."""
    poll_seconds: float = 30.0
    """First look at a batch; later ones up to twenty times as far apart."""
    reconcile_after: float = 600.0
    """A batch that was made is listed by then."""
    timeout: float = 600.0
    """Of one call to the provider."""
    attempts: int = 4
    """Tries of a question within one process."""
    tail: float = 0.05
    """auto: this share of the most conversations ever open is the tail, which is called directly."""
    hour_usd: float = 1.0
    """auto: what an hour's waiting is worth; a batch that saves less than its wait costs is called instead."""
    reuse: bool = False
    """Identical bodies at temperature 0 are asked once."""

    @property
    def max_age(self) -> float:
        """How long the wave engine may hold a question."""
        return 0.0 if self.mode == "concurrent" else self.flush_seconds
