"""Requests in flight: the callbacks that wait for each provider request, and its attempts so far.

A request that several conversations make at the same time is sent once; each of them gets its verdict.
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
        """The identities of all requests in flight."""
        return list(self._entries)

    def add(self, request: ProviderRequest, *waiting: OnVerdict) -> None:
        """Add a request with the callbacks that wait for it; none wait for a request of an earlier process."""
        self._entries[request.identity] = _InFlight(waiting=list(waiting))

    def join(self, request: ProviderRequest, on_verdict: OnVerdict) -> bool:
        """Add a callback to the same request; return False if it is not in flight."""
        entry = self._entries.get(request.identity)
        if entry is None:
            return False
        entry.waiting.append(on_verdict)
        return True

    def next_attempt(self, request: ProviderRequest, *, free: bool) -> int | None:
        """Return the number of the attempt after a failed one, from 1; a `free` failure does not count. None for a
        resolved request."""
        entry = self._entries.get(request.identity)
        if entry is None:
            return None
        entry.attempts += not free
        return entry.attempts

    def resolve(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Pass the verdict to all waiting callbacks. A late result of a resolved request changes nothing."""
        # removed first: a callback may send the same request again
        entry = self._entries.pop(request.identity, None)
        for on_verdict in entry.waiting if entry else ():
            on_verdict(verdict)

    def clear(self) -> None:
        """Forget all requests."""
        self._entries.clear()
