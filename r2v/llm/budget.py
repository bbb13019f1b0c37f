"""The till: nothing goes out before its worst case is set aside, and every cent is in the journal.

    spent + lost + reserved + asked <= cap

A batch or call reserves the most it can cost (prompt bytes as tokens, all of max_tokens, every prompt token written
to the dearest cache), and gives back what it did not use when its answer is booked. So the cap holds whatever comes.
"""

from __future__ import annotations

import asyncio

from r2v.errors import EnvironmentFault
from r2v.llm.asks import Ask, Verdict
from r2v.llm.book import Book
from r2v.llm.journal import Journal, Row
from r2v.llm.prices import Rate


class Till:
    """Journal, book and cap (USD; None: no cap) of one provider's run."""

    def __init__(self, journal: Journal, book: Book, rate: Rate, cap: float | None) -> None:
        self.journal, self.book, self.rate, self.cap = journal, book, rate, cap
        self._held = 0.0
        self._changed = asyncio.Event()

    @property
    def room(self) -> float:
        """USD that may still be set aside."""
        if self.cap is None:
            return float("inf")
        return self.cap - self.book.spent - self.book.lost_usd - self.book.reserved - self._held

    @property
    def idle(self) -> bool:
        """Nothing is under way whose end could make room."""
        return not self.book.batches and not self.book.calls and self._held < 1e-9

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
        if usd > self.room + 1e-9:
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
        """Tell everybody who waits for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def exhausted(self, asked: float) -> EnvironmentFault:
        """The error of a cap that is reached."""
        maybe = f" (of it at most ${self.book.lost_usd:.4f} for calls whose answers were lost)" \
            if self.book.lost_usd else ""
        return EnvironmentFault(
            f"teacher.max_usd={self.cap}: ${self.book.spent + self.book.lost_usd:.4f} are spent{maybe} and the next "
            f"question may cost ${asked:.4f}; everything answered is kept: raise teacher.max_usd and run the same "
            "command again")
