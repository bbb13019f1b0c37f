"""Books of the server: what each forwarded request may cost, what it was billed, and the caps on both.

    async with Books(folder, config) as books:
        entry = await books.reserve(1.20, key="laptop", session="s1")    # raises CapReached
        ...                                                              # forward the request
        await books.settle(entry, 0.031)                                 # or books.lost(entry, "reset")

The intent is in the project's spending journal before a request leaves. An entry that is never settled, because the
server died or the reply told no usage, stays booked at its worst case as *unknown*: no cap is ever exceeded, and no
amount is ever 0 for lack of knowledge.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from r2v.config import Config
from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.result_handler import WallClock
from r2v.llm.providers.membership import Membership
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider_requests import ProviderRequest
from r2v.llm.providers.spending.journal import Journal
from r2v.llm.providers.spending.open_journal import open_journal

_ROUNDING = 1e-9
_SYNC_SECONDS = 0.5
"""Rows are in the system's hands before a request leaves, and on the disk so much later: a killed server loses none, a
power cut may cost those of this time. A sync for each request would add some 20 ms to it on a common disk."""


class CapReached(Exception):
    """A cap does not cover the worst case of a request. The message is sent to the client. passing: it would, were no
    other request in flight."""

    def __init__(self, message: str, *, passing: bool) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """A reservation: its row in the journal, and its worst case in USD."""

    id: str
    usd: float


class Books:
    """The spending journal of one server, as one of the project's at `root`."""

    def __init__(self, folder: Path, config: Config, rate: Rate, root: Path = Path()) -> None:
        teacher, serve = config.teacher, config.serve
        self._folder, self._rate = folder, rate
        self._policy = DispatchPolicy(max_usd=teacher.max_usd)
        self._caps = {
            "key": ("serve.max_usd_per_key", serve.max_usd_per_key),
            "session": ("serve.max_usd_per_session", serve.max_usd_per_session),
            "day": ("serve.max_usd_per_day", serve.max_usd_per_day),
        }
        self._scope = {"provider": "served", "model": serve.name}  # clients name the models
        self._membership = Membership(
            root,
            purse=folder,
            scope=self._scope,
            adopt=_adopt_nothing,
            project_max_usd=teacher.project_max_usd,
            alone=True,  # replies to an agent are drawn anew: nobody else's are used
            lanes=False,
        )
        self._clock = WallClock(now=time.time, sleep=asyncio.sleep)
        self._pending: defaultdict[str, float] = defaultdict(float)
        """USD by label whose rows are being written."""

    async def __aenter__(self) -> Self:
        """Open the journal. Raises LeaseConflict if another server writes it, InputError if it is damaged."""
        self._resources = ExitStack()
        try:
            folder = self._membership.take(self._folder, self._resources)
            journal = Journal(folder / "journal.jsonl", lazy=_SYNC_SECONDS)
            self._resources.callback(journal.close)
            budget = self._membership.budget(self._policy, self._clock)
            self._tracker = await open_journal(journal, self._scope, self._rate, budget)
            await self._membership.open(self._tracker, [], _NoClaims(), self._clock, asyncio.ensure_future, pause=1.0)
        except BaseException:
            self._resources.close()
            raise
        state = self._tracker.state
        self._ids = itertools.count(state.counts["answered"] + state.counts["lost"] + len(state.calls))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._membership.close(self._tracker)
        self._resources.close()

    @property
    def is_capped(self) -> bool:
        """True if any cap is set."""
        return self._tracker.budget.is_capped or any(cap is not None for _, cap in self._caps.values())

    def committed(self, kind: str, name: str) -> float:
        """USD spent or reserved under a label: kind is key, session or day."""
        label = f"{kind}:{name}"
        return self._tracker.state.labels.get(label, 0.0) + self._pending.get(label, 0.0)

    async def reserve(self, usd: float, *, key: str, session: str) -> Reservation:
        """Book the worst case of a request before it is sent. Raises CapReached, and EnvironmentFault if the disk
        refuses."""
        names = {"key": key, "session": session, "day": datetime.now(UTC).date().isoformat()}
        for kind, (setting, cap) in self._caps.items():
            committed = self.committed(kind, names[kind])
            if cap is not None and committed + usd > cap + _ROUNDING:
                raise CapReached(
                    f"{setting}={cap:g}: ${committed:.4f} are spent or reserved by this {kind} and the request may "
                    f"cost ${usd:.4f}; raise {setting}, or ask for fewer max_tokens",
                    passing=committed - self._in_flight(f"{kind}:{names[kind]}") + usd <= cap + _ROUNDING,
                )
        labels = [f"{kind}:{name}" for kind, name in names.items()]
        for label in labels:
            self._pending[label] += usd
        try:
            await self._set_aside(usd)
            entry = Reservation(id=f"{self._tracker.state.run}-{next(self._ids)}", usd=usd)
            await self._tracker.write_reservation({"row": "forward", "id": entry.id, "usd": usd, "labels": labels})
        finally:
            for label in labels:
                self._pending[label] -= usd
                if not self._pending[label]:
                    del self._pending[label]
        return entry

    async def _set_aside(self, usd: float) -> None:
        while not self._tracker.set_aside(usd):
            if await self._tracker.budget.extend(usd):
                continue
            line = str(self._tracker.budget.exhausted(usd)).replace(" and run the same command again", "")
            free = self._tracker.budget.remaining + self._tracker.state.reserved
            raise CapReached(line, passing=usd <= free + _ROUNDING)

    def _in_flight(self, label: str) -> float:
        """Return the USD under a label that become known, and mostly free again, when replies end."""
        state = self._tracker.state
        held = (usd for name, usd in state.calls.items() if label in state.labels_of[name])
        return sum(held) + self._pending.get(label, 0.0)

    async def settle(self, entry: Reservation, usd: float) -> None:
        """Book what a request was billed; 0 for one that was refused or never sent."""
        await self._tracker.write({"row": "served", "id": entry.id, "usd": round(usd, 10)})

    async def lost(self, entry: Reservation, why: str) -> None:
        """Book a request at its worst case, because its amount is unknown."""
        await self._tracker.write({"row": "lost", "id": entry.id, "usd": entry.usd, "why": why})


async def _adopt_nothing(folder: Path) -> None:
    raise EnvironmentFault(f"{folder}: a server brings no batches home")


class _NoClaims:
    """A `Claimant` that claims nothing."""

    def settle(self, request: ProviderRequest, verdict: Any) -> None:
        """Never called."""

    def dispatch(self, requests: Sequence[ProviderRequest]) -> None:
        """Never called."""
