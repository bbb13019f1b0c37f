"""Refusals: which belong to one request, and which to the account.

A key that is revoked, a balance that is spent and a model that is being reloaded are refused in a hundred wordings, and
so is one bad prompt. What tells them apart is who else is refused: a refusal is held until a request that was sent
after it is answered (then it was that request's own), or ten conversations in a row are refused (or all that there are)
and a plain question is refused as well: then the run ends, and nothing counts as refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict

IN_A_ROW = 10
"""Conversations."""

Held = tuple[ProviderRequest, RequestVerdict, str | None]
"""A request, how it was refused, and its batch."""


@dataclass
class Refusals:
    """The refusals of one run whose cause is not known yet."""

    _held: list[tuple[int, Held]] = field(default_factory=list)
    _sent: dict[str, int] = field(default_factory=dict)
    _moments: itertools.count[int] = field(default_factory=itertools.count)

    def sent(self, requests: Sequence[ProviderRequest]) -> None:
        """These go out now."""
        moment = next(self._moments)
        self._sent |= {request.custom_id: moment for request in requests}

    def hold(self, request: ProviderRequest, verdict: RequestVerdict, batch: str | None) -> None:
        """Keep a refusal until its cause is known."""
        self._sent.pop(request.custom_id, None)
        self._held.append((next(self._moments), (request, verdict, batch)))

    def answered(self, request: ProviderRequest) -> list[Held]:
        """A request was answered; the refusals that came before it was sent, which are their requests' own."""
        moment = self._sent.pop(request.custom_id, -1)
        settled = [held for at, held in self._held if at < moment]
        self._held = [(at, held) for at, held in self._held if at >= moment]
        return settled

    def take(self) -> list[Held]:
        """All that are held, which are held no longer."""
        held, self._held = [held for _, held in self._held], []
        return held

    def suspects_account(self, in_flight: int) -> bool:
        """True if so many conversations in a row are refused, or all of those in flight."""
        conversations = {request.conversation for _, (request, _, _) in self._held}
        return bool(self._held) and (len(conversations) >= IN_A_ROW or len(self._held) >= in_flight)

    @property
    def conversations(self) -> int:
        """Conversations with a refusal that is held."""
        return len({request.conversation for _, (request, _, _) in self._held})

    @property
    def first_reason(self) -> str:
        """Why the first of them was refused."""
        return self._held[0][1][1].reason if self._held else ""
