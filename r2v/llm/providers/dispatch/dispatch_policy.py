"""The dispatch policy: whether requests go in batches, by direct calls or whichever is worth it, and how long each step
may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["batch", "concurrent", "auto"]


@dataclass(frozen=True, kw_only=True)
class DispatchPolicy:
    """Times are seconds. The provider's own limits hold besides."""

    mode: Mode = "auto"
    max_usd: float | None = None
    """Hard cap."""
    batch_size: int | None = None
    """Requests in one batch, at most."""
    max_concurrent: int = 32
    """Direct calls in flight, at most."""
    queued_tokens: int | None = None
    """Prompt tokens in batches that have not ended, at most; None: learned from the provider's refusals."""
    flush_seconds: float = 30.0
    """A request waits so long for others to share its batch."""
    poll_seconds: float = 10.0
    """Time between two polls of a batch, at least; longer where more than five batches are in flight, or a batch has
    taken more than half an hour."""
    reconcile_after: float = 600.0
    """A batch that was created is listed by then."""
    timeout: float = 600.0
    """Of one call to the provider."""
    preflight: bool = False
    """One cheap call goes before the first request of a run."""
    reach_seconds: float = 30.0
    """A provider that never answered in this process is tried so long before the run ends."""
    outage_seconds: float = 14_400.0
    """A provider that has answered, and can't be reached any more, is waited for so long."""
    attempts: int = 4
    """Attempts of a request within one process."""
    silent_answers: int = 3
    """Answers without text, each billed, after which a request counts as refused."""
    tail: float = 0.05
    """auto: this share of the most conversations ever open is the tail, whose requests are called directly."""
    waiting_usd_per_hour: float = 1.0
    """auto: the cost of an hour's waiting; a batch that saves less than its wait costs is called directly instead."""
    reuse: bool = False
    """Identical bodies at temperature 0 are sent once."""

    @property
    def max_age(self) -> float:
        """How long the wave engine may hold a request back."""
        return 0.0 if self.mode == "concurrent" else self.flush_seconds
