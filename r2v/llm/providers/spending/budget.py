"""The till: nothing goes out before its worst case is set aside, and every cent is in the journal.

    spent + lost + reserved + asked <= cap

The cap is a purse's, which several tills may share: the models of one job are paid out of one purse.
A batch or call reserves the most it can cost (prompt bytes as tokens, all of max_tokens, every prompt token written
to the dearest cache), and gives back what it did not use when its answer is booked. So the cap holds whatever comes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from r2v.errors import EnvironmentFault
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider_requests import Ask, Verdict
from r2v.llm.providers.spending.journal import Journal, Row
from r2v.llm.providers.spending.journal_state import Book


class Purse:
    """A hard cap in USD (None: none) over all tills that join. Until `parties` of them have read their journals nothing
    may be set aside, for what they have spent is not known yet. `name`: the setting to raise."""

    def __init__(self, cap: float | None, *, parties: int = 1, name: str = "teacher.max_usd") -> None:
        self.cap, self.name, self._parties = cap, name, parties
        self._tills: dict[Path, Till] = {}

    def join(self, till: Till) -> None:
        """Count this till in, in place of an earlier one on the same journal."""
        self._tills[till.journal.path] = till
        self.stir()

    @property
    def room(self) -> float:
        """USD that may still be set aside."""
        if self.cap is None:
            return float("inf")
        return self.cap - sum(till.bound for till in self._tills.values()) if self._whole else 0.0

    @property
    def idle(self) -> bool:
        """Nothing is under way whose end could make room."""
        return self._whole and not any(till.busy for till in self._tills.values())

    @property
    def _whole(self) -> bool:
        return len(self._tills) >= self._parties

    def stir(self) -> None:
        """Tell everybody who waits for a change at any till."""
        for till in self._tills.values():
            till.wake()

    def exhausted(self, asked: float) -> EnvironmentFault:
        """The error of a cap that is reached."""
        lost = sum(till.book.lost_usd for till in self._tills.values())
        spent = sum(till.book.spent for till in self._tills.values()) + lost
        maybe = f" (of it at most ${lost:.4f} for calls whose answers were lost)" if lost else ""
        return EnvironmentFault(
            f"{self.name}={self.cap}: ${spent:.4f} are spent{maybe} and the next question may cost ${asked:.4f}; "
            f"everything answered is kept: raise {self.name} and run the same command again"
        )


class Till:
    """Journal and book of one provider's run, paid out of a purse."""

    def __init__(self, journal: Journal, book: Book, rate: Rate, purse: Purse) -> None:
        self.journal, self.book, self.rate, self.purse = journal, book, rate, purse
        self._held = 0.0
        self._changed = asyncio.Event()
        purse.join(self)

    @property
    def bound(self) -> float:
        """USD that are spent, may be, or are set aside."""
        return self.book.spent + self.book.lost_usd + self.book.reserved + self._held

    @property
    def busy(self) -> bool:
        """Something is under way."""
        return bool(self.book.batches or self.book.calls) or self._held >= 1e-9

    def worst(self, ask: Ask, *, batch: bool) -> float:
        """The most that an ask can cost."""
        return self.rate.worst(ask.tokens_in, ask.max_tokens, batch=batch)

    def usd(self, ask: Ask, verdict: Verdict, *, batch: bool) -> float:
        """What an ask is billed; the worst case where the provider did not say."""
        if not verdict.billed:
            return 0.0
        return self.worst(ask, batch=batch) if verdict.tokens is None else self.rate.usd(verdict.tokens, batch=batch)

    def hold(self, usd: float) -> bool:
        """Set this aside until the row that reserves it is written; False where there is no room."""
        if usd > self.purse.room + 1e-9:
            return False
        self._held += usd
        return True

    async def reserve(self, row: Row) -> None:
        """Write the row of what was held."""
        try:
            await self.write(row)
        finally:
            self._held -= row["usd"]

    async def write(self, *rows: Row) -> None:
        """Journal rows, then note them."""
        for row, place in zip(rows, await self.journal.write(*rows), strict=True):
            self.book.note(row, place)
        self.stir()

    def stir(self) -> None:
        """Tell everybody who waits for a change, at this till or at one that shares its purse."""
        self.purse.stir()

    def wake(self) -> None:
        """Let those who wait at this till look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()
