"""Books of the server: reserved and billed USD of each forwarded request, and the caps on them.

A reservation is in the project's spending journal before a request leaves. One that is never settled, because the
server died or the reply held no usage, stays booked at its worst case as *unknown*: no cap is ever exceeded, and an
unknown amount never counts as 0.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from r2v.config import Config
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, WallClock
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.project_session import ProjectSession
from r2v.llm.providers.spending.budget import open_journal
from r2v.llm.providers.spending.journal import Journal

_ROUNDING = 1e-9
"""USD by which sums of floats may miss a cap."""
_SYNC_SECONDS = 0.5
"""Delay of the journal's fsync. Rows are written before a request leaves: a killed server loses none, a power cut those
of this time. A sync for each request would add some 20 ms to it on a common disk."""


class CapReached(Exception):
    """A cap does not cover the worst case of a request. The message is sent to the client. passing: the cap would cover
    it if no other request were in flight."""

    def __init__(self, message: str, *, passing: bool) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """A reservation: its row in the journal, and its worst case in USD."""

    id: str
    usd: float


class Books:
    """Spending journal of one server, registered with the project at `root`."""

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
        self._session = ProjectSession(
            root,
            payer=folder,
            scope=self._scope,
            adopt=None,  # replies to an agent are drawn anew: those of other journals are not reused
            project_max_usd=teacher.project_max_usd,
            numbered=False,
        )
        self._clock = WallClock(now=time.time, sleep=asyncio.sleep)
        self._pending: defaultdict[str, float] = defaultdict(float)
        """Label -> USD of rows that are being written, so that concurrent requests cannot pass a cap together."""

    async def __aenter__(self) -> Self:
        """Open the journal. Raises LeaseConflict if another server writes it, InputError if it is damaged."""
        self._resources = ExitStack()
        try:
            folder = self._session.take(self._folder, self._resources)
            journal = Journal(folder / "journal.jsonl", lazy=_SYNC_SECONDS)
            self._resources.callback(journal.close)
            budget = self._session.budget(self._policy, self._clock)
            self._tracker = await open_journal(journal, self._scope, self._rate, budget)
            await self._session.open(self._tracker, [], None, self._clock, asyncio.ensure_future, pause=1.0)
        except BaseException:  # cancelled or failed half-way: release the lease that was taken
            self._resources.close()
            raise
        state = self._tracker.state
        self._ids = itertools.count(state.counts["answered"] + state.counts["lost"] + len(state.calls))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close(self._tracker)
        self._resources.close()

    @property
    def is_capped(self) -> bool:
        """True if any cap is set."""
        return self._tracker.budget.is_capped or any(cap is not None for _, cap in self._caps.values())

    def committed(self, kind: str, name: str) -> float:
        """Return the USD spent or reserved under a label. kind: key, session or day."""
        label = f"{kind}:{name}"
        return self._tracker.state.labels.get(label, 0.0) + self._pending.get(label, 0.0)

    async def reserve(self, usd: float, *, key: str, session: str) -> Reservation:
        """Book the worst case of a request before it is sent. Raises CapReached, and EnvironmentFault if the journal
        cannot be written."""
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
            # the client sees this line, and has no command to run again
            line = str(self._tracker.budget.exhausted(usd)).replace(" and run the same command again", "")
            free = self._tracker.budget.remaining + self._tracker.state.reserved
            raise CapReached(line, passing=usd <= free + _ROUNDING)

    def _in_flight(self, label: str) -> float:
        """Return the USD reserved under a label for requests in flight, of which settling frees a part."""
        state = self._tracker.state
        held = (usd for name, usd in state.calls.items() if label in state.labels_of[name])
        return sum(held) + self._pending.get(label, 0.0)

    async def settle(self, entry: Reservation, usd: float) -> None:
        """Book a request's billed USD; 0 for one that was refused or never sent."""
        await self._tracker.write({"row": "served", "id": entry.id, "usd": round(usd, 10)})

    async def lost(self, entry: Reservation, why: str) -> None:
        """Book a request of unknown amount at its worst case."""
        await self._tracker.write({"row": "lost", "id": entry.id, "usd": entry.usd, "why": why})
