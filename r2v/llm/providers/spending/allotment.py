"""The allotment: what one process may commit of caps that several processes share.

    committed of all others + allotted to us <= cap        for the purse's cap and for the project's

It grows under the ledger's lease, by a share of what is left, so that it is small when little is left. A process that
is refused hands back what it does not use; it asks again while another living process has money that may come free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger

_SHARE = 0.05
"""Of what is left of a cap, allotted at a time beyond what is needed."""
_ROUNDING = 1e-9
_PAUSE = 0.5
"""Seconds between two times that a refused process asks."""


class Waiting(Protocol):
    """Seconds, and a sleep that goes with them."""

    @property
    def now(self) -> Callable[[], float]:
        """The time."""
        ...

    @property
    def sleep(self) -> Callable[[float], Awaitable[None]]:
        """Wait so many seconds."""
        ...


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A cap that does not cover what was asked for."""

    name: str
    cap: float
    others_usd: float
    """Committed by other journals."""
    hopeful: bool
    """Whether another living process may give something back."""


class Allotment:
    """One process' share. `caps`: the settings that bound it, by name; teacher.max_usd bounds the purse, any other one
    the project. exclusive: holds the ledger's lease."""

    def __init__(
        self,
        ledger: ProjectLedger,
        caps: dict[str, float],
        exclusive: Callable[[], AbstractAsyncContextManager[None]],
        clock: Waiting,
    ) -> None:
        self._ledger, self._caps, self._exclusive, self._clock = ledger, caps, exclusive, clock
        self.usd = 0.0
        self.refusal: Refusal | None = None
        self.entry: JournalEntry | None = None
        """Ours, once the journal is open."""
        self._asking = asyncio.Lock()
        self._ask_again = 0.0
        self._refused_at: float | None = None
        """What was committed when it last asked: less is a reason to ask again."""

    @property
    def cap(self) -> float:
        """The lowest of the caps."""
        return min(self._caps.values())

    def start(self, entry: JournalEntry, committed: float) -> JournalEntry:
        """The entry of a journal that is opened: what it has committed, and no more."""
        self.usd = committed
        self.entry = replace(entry, allotted=committed)
        return self.entry

    async def extend(self, committed: Callable[[], float], usd: float, wish: float) -> bool:
        """As `SharedBudget.extend`."""
        same = self._refused_at is not None and committed() >= self._refused_at - _ROUNDING
        if self.refusal is not None and same and (wait := self._ask_again - self._clock.now()) > 0:
            if not self.refusal.hopeful:
                return False
            await self._clock.sleep(wait)
            return True
        async with self._asking:
            if self.usd - committed() >= max(usd, wish):
                return True
            async with self._exclusive():
                # nothing is reserved of the old allotment while a new one is worked out
                self.usd = held = committed()
                self.refusal = await asyncio.to_thread(self._granted, held, usd, wish)
            self._refused_at, self._ask_again = held, self._clock.now() + _PAUSE
            # what came free of ours meanwhile was not counted
            return self.refusal is None or self.refusal.hopeful or committed() < held - _ROUNDING

    def _granted(self, committed: float, usd: float, wish: float) -> Refusal | None:
        with self._ledger.lock:
            return self._grant(committed, usd, wish)

    def _grant(self, committed: float, usd: float, wish: float) -> Refusal | None:
        """Raise the allotment, or hand back what is not used."""
        assert self.entry is not None, "the journal is open"
        entries = [entry for entry in self._ledger.entries() if entry.run != self.entry.run]
        self._ledger.require_whole()
        free, refusal = float("inf"), None
        for name, cap in self._caps.items():
            group = [one for one in entries if name != "teacher.max_usd" or one.purse == self.entry.purse]
            others = {one.run: self._ledger.committed(one) for one in group}
            left = cap - sum(others.values()) - committed
            free = min(free, left)
            if left + _ROUNDING < usd and refusal is None:
                hopeful = any(self._may_return(one, others[one.run]) for one in group)
                refusal = Refusal(name=name, cap=cap, others_usd=sum(others.values()), hopeful=hopeful)
        if refusal is None:
            self.usd = committed + max(usd, min(free, max(wish, usd + _SHARE * (free - usd))))
        else:
            self.usd = committed
        self.entry = replace(self.entry, allotted=self.usd)
        self._ledger.write(self.entry)
        return refusal

    def _may_return(self, entry: JournalEntry, committed: float) -> bool:
        view = self._ledger.view(entry) if entry.open else None
        return view is not None and view.alive and committed > view.spent + view.lost_usd + _ROUNDING
