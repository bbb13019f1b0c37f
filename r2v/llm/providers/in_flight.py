"""Requests in flight: who waits for which provider request, and how often it has been attempted.

A request that several conversations send at the same time is sent once; each of them gets its verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from r2v.llm.providers.provider_requests import ProviderRequest, RequestIdentity, RequestVerdict

OnVerdict = Callable[[RequestVerdict], None]


@dataclass
class _InFlight:
    attempts: int = 1
    """Within this process."""
    waiting: list[OnVerdict] = field(default_factory=list)


class InFlightRequests:
    """The requests of one run that have no answer yet, by identity."""

    def __init__(self) -> None:
        self._entries: dict[RequestIdentity, _InFlight] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def identities(self) -> list[RequestIdentity]:
        """Which they are."""
        return list(self._entries)

    def add(self, request: ProviderRequest, *waiting: OnVerdict) -> None:
        """A request goes out; nobody waits for one that an earlier process sent."""
        self._entries[request.identity] = _InFlight(waiting=list(waiting))

    def join(self, request: ProviderRequest, on_verdict: OnVerdict) -> bool:
        """Wait for the same request; False where it is not in flight."""
        entry = self._entries.get(request.identity)
        if entry is None:
            return False
        entry.waiting.append(on_verdict)
        return True

    def next_attempt(self, request: ProviderRequest, *, free: bool) -> int | None:
        """The number of the attempt that would follow a failed one (a `free` failure does not count), from 1; None for
        a request that is settled."""
        entry = self._entries.get(request.identity)
        if entry is None:
            return None
        entry.attempts += not free
        return entry.attempts

    def resolve(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Hand the verdict to everybody who waits. A late result of a request that is settled changes nothing."""
        entry = self._entries.pop(request.identity, None)
        for on_verdict in entry.waiting if entry else ():
            on_verdict(verdict)

    def clear(self) -> None:
        """Forget all of them."""
        self._entries.clear()
