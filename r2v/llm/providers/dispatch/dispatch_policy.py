"""Dispatch policy: batches, direct calls or the cheaper way for each wave, and the time limit of each step; and the
interface by which both dispatchers report results, with their clock and task starter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from r2v.errors import EnvironmentFault
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict

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


Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Function that starts a task whose error ends the run."""


@dataclass(frozen=True, kw_only=True)
class WallClock:
    """Unix time in seconds with its sleep; virtual in benchmarks."""

    now: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


class ResultHandler(Protocol):
    """The receiver of the results of batches and calls."""

    async def record_results(
        self, results: Sequence[tuple[ProviderRequest, RequestVerdict]], batch: str | None
    ) -> list[ProviderRequest]:
        """Journal results and resolve the requests with an answer or a refusal; return those to be sent again."""
        ...

    def requeue(self, requests: Sequence[ProviderRequest], reason: str, *, free: bool = False) -> None:
        """Send requests again after a failed attempt, or give them up; a `free` attempt does not count."""
        ...

    def batches_unavailable(self, requests: Sequence[ProviderRequest], reason: str) -> None:
        """Handle requests for which no batch can be created."""
        ...


def account_error(provider: str, reason: str) -> EnvironmentFault:
    """Return the error of an account that cannot pay, or whose key is refused."""
    return EnvironmentFault(
        f"{provider}: {reason}; check the account and the key, then run the same command again: "
        "everything answered is kept"
    )
