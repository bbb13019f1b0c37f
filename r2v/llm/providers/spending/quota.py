"""Quota: the USD that one process may commit under caps that several processes share.

    committed by all others + allotted to this process <= cap        for the payer's cap and for the project's

It grows under the ledger's lease by a share of the money left, so that steps are small when little is left. A refused
process returns its unused quota, and asks again while another living process holds reservations that may be released.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger

PAYER_CAP, PROJECT_CAP = "teacher.max_usd", "teacher.project_max_usd"
"""Settings that cap the spending of a payer, and of the project."""
_SHARE = 0.05
"""Share of the money left under a cap that one extension takes beyond the need."""
_ROUNDING = 1e-9  # USD: sums of many small reservations do not return to exactly 0
_PAUSE = 0.5
"""Seconds between two requests of a refused process for more."""


class Waiting(Protocol):
    """A clock in seconds with its sleep, virtual in tests."""

    @property
    def now(self) -> Callable[[], float]:
        """The current time in seconds."""
        ...

    @property
    def sleep(self) -> Callable[[float], Awaitable[None]]:
        """Sleep for a number of seconds."""
        ...


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The cap that refused an extension."""

    name: str
    cap: float
    others_usd: float
    """Committed by other journals."""
    hopeful: bool
    """True if another living process may release money."""


class Quota:
    """The quota of one process. payer_cap: USD for the journals of its payer together, None: no such cap; the project's
    cap comes from the ledger. exclusive: holds the ledger's lease."""

    def __init__(
        self,
        ledger: ProjectLedger,
        payer_cap: float | None,
        exclusive: Callable[[], AbstractAsyncContextManager[None]],
        clock: Waiting,
    ) -> None:
        self._ledger, self._payer_cap, self._exclusive, self._clock = ledger, payer_cap, exclusive, clock
        self.usd = 0.0
        """USD allotted; infinite without a cap."""
        self.refusal: Refusal | None = None
        self.entry: JournalEntry | None = None
        """The entry of this process's first journal, once it is open; it records the quota of all its journals."""
        self._asking = asyncio.Lock()
        self._ask_again = 0.0
        self._refused_at: float | None = None
        """USD committed at the last refusal; only with less committed is it worth asking again."""
        self.cap = math.inf
        """The lowest cap, as of the last check."""

    def start(self, entry: JournalEntry, committed: float) -> JournalEntry:
        """Return the entry of a newly opened journal, with its committed USD as the quota. The caller holds the
        lease."""
        self.cap = min(self._caps().values(), default=math.inf)
        if self.cap == math.inf:
            self.usd, self.entry = math.inf, self.entry or entry
            return entry
        self.usd += committed
        if self.entry is None:
            self.entry = replace(entry, allotted=self.usd)
            return self.entry
        self.entry = replace(self.entry, allotted=self._own_share(entry, committed))
        self._ledger.write(self.entry)
        return replace(entry, pool=self.entry.run)

    def _own_share(self, joining: JournalEntry | None = None, committed: float = 0.0) -> float:
        """Return the USD to record in the first journal's entry: the quota without the commitments of this process's
        other journals, which count by their own entries even after its death."""
        assert self.entry is not None
        new = None if joining is None else joining.run
        pooled = [entry for entry in self._ledger.entries() if entry.pool == self.entry.run and entry.run != new]
        return max(0.0, self.usd - committed - sum(map(self._ledger.committed, pooled)))

    def _caps(self) -> dict[str, float]:
        caps = {PAYER_CAP: self._payer_cap, PROJECT_CAP: self._ledger.cap}
        return {name: cap for name, cap in caps.items() if cap is not None}

    async def extend(self, committed: Callable[[], float], usd: float, wish: float) -> bool:
        """As `SharedBudget.extend`."""
        if self.usd == math.inf:
            return False
        same = self._refused_at is not None and committed() >= self._refused_at - _ROUNDING
        if self.refusal is not None and same and (wait := self._ask_again - self._clock.now()) > 0:
            if not self.refusal.hopeful:
                return False
            await self._clock.sleep(wait)  # thousands of conversations ask; the ledger is read once per pause
            return True
        async with self._asking:
            # another task may have extended it while this one waited for the lock
            if self.usd - committed() >= max(usd, wish):
                return True
            async with self._exclusive():
                # lowered first: no task may reserve from the old quota while the thread computes the new one
                self.usd = held = committed()
                self.refusal = await asyncio.to_thread(self._granted, held, usd, wish)
            self._refused_at, self._ask_again = held, self._clock.now() + _PAUSE
            # releases of this process during the extension were not counted, and justify another request
            return self.refusal is None or self.refusal.hopeful or committed() < held - _ROUNDING

    def _granted(self, committed: float, usd: float, wish: float) -> Refusal | None:
        with self._ledger.lock:
            return self._grant(committed, usd, wish)

    def _grant(self, committed: float, usd: float, wish: float) -> Refusal | None:
        """Raise the quota and return None; or return the unused part and the refusal."""
        assert self.entry is not None, "the journal is open"
        entries = [entry for entry in self._ledger.entries() if self.entry.run not in (entry.run, entry.pool)]
        self._ledger.require_whole()
        free, refusal = float("inf"), None
        caps = self._caps()
        self.cap = min(caps.values(), default=math.inf)
        for name, cap in caps.items():
            group = [entry for entry in entries if name == PROJECT_CAP or entry.payer == self.entry.payer]
            others = {entry.run: self._ledger.committed(entry) for entry in group}
            left = cap - sum(others.values()) - committed
            free = min(free, left)
            if left + _ROUNDING < usd and refusal is None:
                hopeful = any(self._may_return(entry, others[entry.run]) for entry in group)
                refusal = Refusal(name=name, cap=cap, others_usd=sum(others.values()), hopeful=hopeful)
        if not caps:
            self.usd = committed + max(usd, wish)  # finite for good: the cap may return
        elif refusal is None:
            self.usd = committed + max(usd, min(free, max(wish, usd + _SHARE * (free - usd))))
        else:
            self.usd = committed
        self.entry = replace(self.entry, allotted=self._own_share())
        self._ledger.write(self.entry)
        return refusal

    def _may_return(self, entry: JournalEntry, committed: float) -> bool:
        view = self._ledger.view(entry) if entry.open else None
        return view is not None and view.alive and committed > view.spent + view.lost_usd + _ROUNDING


@contextmanager
def paying(pipeline: str) -> Iterator[None]:
    """Let this pipeline pay for all requests in the block, those of child processes included."""
    before = current_payer()
    os.environ["R2V_PAYER"] = pipeline
    try:
        yield
    finally:
        os.environ["R2V_PAYER"] = before or ""


def current_payer() -> str | None:
    """Return the pipeline that pays; None outside of any, as in a game."""
    return os.environ.get("R2V_PAYER") or None
