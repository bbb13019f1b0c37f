"""Result handler: the interface by which both dispatchers report results, with their clock and task starter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from r2v.errors import EnvironmentFault
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict

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
