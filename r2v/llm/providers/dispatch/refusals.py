"""Refusals: the distinction between those of one request and those of the whole account.

A revoked key, a spent balance, a model being reloaded and a single bad prompt are refused in many wordings. The
distinction is made by other requests: a refusal is held until a request sent after it is answered (then it concerns its
own request), or until ten conversations in a row, or all in flight, are refused and a plain question is refused as
well. In the second case the run ends, and no request counts as refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict

IN_A_ROW = 10
"""Number of refused conversations in a row that suggests a fault of the account."""

Held = tuple[ProviderRequest, RequestVerdict, str | None]
"""A request, its refusal, and its batch key."""


@dataclass
class Refusals:
    """The refusals of one run whose cause is still unknown."""

    _held: list[tuple[int, Held]] = field(default_factory=list)
    _sent: dict[str, int] = field(default_factory=dict)
    _moments: itertools.count[int] = field(default_factory=itertools.count)

    def sent(self, requests: Sequence[ProviderRequest]) -> None:
        """Record that requests are sent now."""
        moment = next(self._moments)
        self._sent |= {request.custom_id: moment for request in requests}

    def hold(self, request: ProviderRequest, verdict: RequestVerdict, batch: str | None) -> None:
        """Hold a refusal until its cause is known."""
        self._sent.pop(request.custom_id, None)
        self._held.append((next(self._moments), (request, verdict, batch)))

    def answered(self, request: ProviderRequest) -> list[Held]:
        """Release the refusals from before an answered request was sent: they concern their own requests."""
        moment = self._sent.pop(request.custom_id, -1)
        own = [held for at, held in self._held if at < moment]
        self._held = [(at, held) for at, held in self._held if at >= moment]
        return own

    def take(self) -> list[Held]:
        """Release all held refusals."""
        held, self._held = [held for _, held in self._held], []
        return held

    def suspects_account(self, in_flight: int) -> bool:
        """True if `IN_A_ROW` conversations in a row are refused, or all of those in flight."""
        conversations = {request.conversation for _, (request, _, _) in self._held}
        return bool(self._held) and (len(conversations) >= IN_A_ROW or len(self._held) >= in_flight)

    @property
    def conversations(self) -> int:
        """Number of conversations with a held refusal."""
        return len({request.conversation for _, (request, _, _) in self._held})

    @property
    def first_reason(self) -> str:
        """Reason of the first held refusal; empty without one."""
        return self._held[0][1][1].reason if self._held else ""
