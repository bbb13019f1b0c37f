"""The result handler: what a dispatcher does with its results, whichever way the requests went."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from r2v.errors import EnvironmentFault
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict

Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Starts a task whose error ends the run."""


@dataclass(frozen=True, kw_only=True)
class WallClock:
    """Seconds of the epoch, and a sleep that goes with them; a benchmark's may be virtual."""

    now: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


class ResultHandler(Protocol):
    """Where the results of batches and calls go."""

    async def record_results(
        self, results: Sequence[tuple[ProviderRequest, RequestVerdict]], batch: str | None
    ) -> list[ProviderRequest]:
        """Journal these results, then resolve the requests that have an answer or a refusal; those to be sent again."""
        ...

    def requeue(self, requests: Sequence[ProviderRequest], reason: str, *, free: bool = False) -> None:
        """Send these once more, or give them up: an attempt has failed. A `free` one does not count."""
        ...

    def batches_unavailable(self, requests: Sequence[ProviderRequest], reason: str) -> None:
        """No batch can be created; the handler decides what becomes of these requests."""
        ...


def account_error(provider: str, reason: str) -> EnvironmentFault:
    """The error of an account that cannot pay, or whose key is refused."""
    return EnvironmentFault(
        f"{provider}: {reason}; see to the account or the key, then run the same command again: "
        "everything answered is kept"
    )
