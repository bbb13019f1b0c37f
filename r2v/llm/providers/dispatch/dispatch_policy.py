"""Dispatch policy: batches, direct calls or the cheaper way for each wave, and the time limit of each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["batch", "concurrent", "auto"]


@dataclass(frozen=True, kw_only=True)
class DispatchPolicy:
    """Limits on dispatch, within the provider's own. Times are in seconds."""

    mode: Mode = "auto"
    max_usd: float | None = None
    """Hard cap; None: no cap."""
    batch_size: int | None = None
    """Most requests in one batch."""
    max_concurrent: int = 32
    """Most direct calls in flight."""
    queued_tokens: int | None = None
    """Most prompt tokens in batches that have not ended; None: learned from the provider's refusals."""
    flush_seconds: float = 30.0
    """Time that a request waits for others to share its batch."""
    poll_seconds: float = 10.0
    """Least time between two polls of a batch; longer with more than five batches in flight, or for a batch older than
    half an hour."""
    reconcile_after: float = 600.0
    """Time within which a created batch appears in the provider's list."""
    timeout: float = 600.0
    """Timeout of one call to the provider."""
    preflight: bool = False
    """True to make one cheap call before the first request of a run."""
    reach_seconds: float = 30.0
    """Time after which the run ends if the provider has never answered in this process."""
    outage_seconds: float = 14_400.0
    """Time after which the run ends if a provider that has answered cannot be reached any more."""
    attempts: int = 4
    """Most attempts of a request within one process."""
    silent_answers: int = 3
    """Number of answers without text, each billed, after which a request counts as refused."""
    tail: float = 0.05
    """auto: share of the largest number of open conversations below which requests are called directly."""
    waiting_usd_per_hour: float = 1.0
    """auto: cost of an hour's waiting; requests whose batch saves less than its wait costs are called directly."""
    reuse: bool = False
    """True to send identical bodies at temperature 0 once."""

    @property
    def max_age(self) -> float:
        """Seconds for which the wave engine may hold a request back."""
        return 0.0 if self.mode == "concurrent" else self.flush_seconds
