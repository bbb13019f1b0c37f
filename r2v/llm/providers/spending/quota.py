"""The quota: what one process may commit of caps that several processes share.

    committed of all others + allotted to us <= cap        for the payer's cap and for the project's

It grows under the ledger's lease, by a share of what is left, so that it is small when little is left. A process that
is refused hands back what it does not use; it asks again while another living process has money that may come free.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger

PAYER_CAP, PROJECT_CAP = "teacher.max_usd", "teacher.project_max_usd"
"""The settings that bound a payer, and the project."""
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


class Quota:
    """One process' share. payer_cap: what bounds the journals of its payer, None: nothing of the project's; besides it
    holds what the ledger says of the whole project. exclusive: holds the ledger's lease."""

    def __init__(
        self,
        ledger: ProjectLedger,
        payer_cap: float | None,
        exclusive: Callable[[], AbstractAsyncContextManager[None]],
        clock: Waiting,
    ) -> None:
        self._ledger, self._payer_cap, self._exclusive, self._clock = ledger, payer_cap, exclusive, clock
        self.usd = 0.0
        """Infinite where no cap holds."""
        self.refusal: Refusal | None = None
        self.entry: JournalEntry | None = None
        """Of our first journal, once it is open: it holds the share of all."""
        self._asking = asyncio.Lock()
        self._ask_again = 0.0
        self._refused_at: float | None = None
        """What was committed when it last asked: less is a reason to ask again."""
        self.cap = math.inf
        """The lowest of the caps, when it last looked."""

    def start(self, entry: JournalEntry, committed: float) -> JournalEntry:
        """The entry of a journal that is opened: what it has committed, and no more. The ledger's lease is held."""
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
        """What the first journal's entry holds: the quota without what our other journals have committed, which
        their own entries count, whether this process lives or not."""
        assert self.entry is not None
        new = None if joining is None else joining.run
        pooled = [one for one in self._ledger.entries() if one.pool == self.entry.run and one.run != new]
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
            await self._clock.sleep(wait)
            return True
        async with self._asking:
            if self.usd - committed() >= max(usd, wish):
                return True
            async with self._exclusive():
                # nothing is reserved of the old quota while a new one is worked out
                self.usd = held = committed()
                self.refusal = await asyncio.to_thread(self._granted, held, usd, wish)
            self._refused_at, self._ask_again = held, self._clock.now() + _PAUSE
            # what came free of ours meanwhile was not counted
            return self.refusal is None or self.refusal.hopeful or committed() < held - _ROUNDING

    def _granted(self, committed: float, usd: float, wish: float) -> Refusal | None:
        with self._ledger.lock:
            return self._grant(committed, usd, wish)

    def _grant(self, committed: float, usd: float, wish: float) -> Refusal | None:
        """Raise the quota, or hand back what is not used."""
        assert self.entry is not None, "the journal is open"
        entries = [entry for entry in self._ledger.entries() if self.entry.run not in (entry.run, entry.pool)]
        self._ledger.require_whole()
        free, refusal = float("inf"), None
        caps = self._caps()
        self.cap = min(caps.values(), default=math.inf)
        for name, cap in caps.items():
            group = [one for one in entries if name == PROJECT_CAP or one.payer == self.entry.payer]
            others = {one.run: self._ledger.committed(one) for one in group}
            left = cap - sum(others.values()) - committed
            free = min(free, left)
            if left + _ROUNDING < usd and refusal is None:
                hopeful = any(self._may_return(one, others[one.run]) for one in group)
                refusal = Refusal(name=name, cap=cap, others_usd=sum(others.values()), hopeful=hopeful)
        if not caps:
            self.usd = committed + max(usd, wish)  # bounded once, bounded for good: the cap may come back
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
