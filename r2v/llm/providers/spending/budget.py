"""The budget: no request goes out before its worst case is reserved, and every cent stands in the journal.

    spent + lost + reserved + the next request's worst case <= cap

A `SpendTracker` keeps one provider's journal; its cap is a `SharedBudget`, which several trackers may share: all models
of one job are paid from one budget. A batch or call reserves the most that it can cost (what the provider has counted
of its prompt and a token for each byte besides, all of max_tokens, every prompt token written to the dearest cache) and
releases what it did not use when its result is
journaled. So the cap holds whatever the provider answers.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from r2v.errors import EnvironmentFault
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict
from r2v.llm.providers.spending.journal import Journal, JournalRow
from r2v.llm.providers.spending.journal_state import JournalState
from r2v.llm.providers.spending.known_counts import KnownCounts
from r2v.llm.providers.spending.quota import PROJECT_CAP, Quota

_ROUNDING = 1e-9
"""USD: sums of many small reservations do not come back to exactly 0."""


class SharedBudget:
    """A hard cap in USD (None: none) over all trackers that join.

    num_trackers: until so many have read their journals nothing may be reserved, because what they have spent in
    earlier processes is not known yet. name: the setting to raise, for the error message.
    """

    def __init__(
        self,
        cap: float | None,
        *,
        num_trackers: int = 1,
        name: str = "teacher.max_usd",
        quota: Quota | None = None,
    ) -> None:
        self.cap, self.name, self._num_trackers = cap, name, num_trackers
        self.quota = quota
        self._trackers: dict[Path, SpendTracker] = {}

    def join(self, tracker: SpendTracker) -> None:
        """Count this tracker in, in place of an earlier one on the same journal."""
        self._trackers[tracker.journal.path] = tracker
        self.notify()

    @property
    def is_capped(self) -> bool:
        """Whether any cap holds."""
        return self.cap is not None or (self.quota is not None and self.quota.cap < float("inf"))

    @property
    def remaining(self) -> float:
        """USD that may still be reserved, without asking for more of a cap that others share."""
        own = float("inf") if self.cap is None else self.cap
        limit = own if self.quota is None else min(own, self.quota.usd)
        if limit == float("inf"):
            return limit
        return limit - self.committed if self._complete else 0.0

    @property
    def within_reach(self) -> float:
        """USD that may still be reserved, where nobody else takes them."""
        own = float("inf") if self.cap is None else self.cap
        cap = own if self.quota is None else min(own, self.quota.cap)
        return max(self.remaining, cap - self.committed)

    @property
    def committed(self) -> float:
        """USD that all trackers have spent, may have spent, or hold reserved."""
        return sum(tracker.committed for tracker in self._trackers.values())

    async def extend(self, usd: float, wish: float = 0.0) -> bool:
        """Ask for `usd`, better `wish`, of a cap that other processes share, where that is not there; False where it
        is not to be had, True where it may be worth another look."""
        if self.quota is None or (self.cap is not None and self.committed + usd > self.cap + _ROUNDING):
            return False
        return self.remaining >= max(usd, wish) or await self.quota.extend(lambda: self.committed, usd, wish)

    @property
    def idle(self) -> bool:
        """Nothing is in flight whose end could release a reservation."""
        return self._complete and not any(tracker.busy for tracker in self._trackers.values())

    @property
    def _complete(self) -> bool:
        return len(self._trackers) >= self._num_trackers

    def notify(self) -> None:
        """Wake everybody who waits for a change at any tracker."""
        for tracker in self._trackers.values():
            tracker.wake()

    def exhausted(self, next_usd: float) -> EnvironmentFault:
        """The error of a cap that is reached; `next_usd`: what the next request may cost."""
        lost = sum(tracker.state.lost_usd for tracker in self._trackers.values())
        spent = sum(tracker.state.spent for tracker in self._trackers.values()) + lost
        of_it_lost = f" (of it at most ${lost:.4f} for calls whose answers were lost)" if lost else ""
        name, cap, remedy = self.name, self.cap, f"raise {self.name}"
        own_cap = self.cap is not None and self.committed + next_usd > self.cap + _ROUNDING
        if not own_cap and self.quota is not None and self.quota.refusal is not None:
            refusal = self.quota.refusal
            name, cap, spent = refusal.name, refusal.cap, spent + refusal.others_usd
            remedy = "raise it by `r2v providers ledger --max-usd USD`" if name == PROJECT_CAP else f"raise {name}"
        return EnvironmentFault(
            f"{name}={cap}: ${spent:.4f} are spent{of_it_lost} and the next request may cost "
            f"${next_usd:.4f}; everything answered is kept: {remedy} and run the same command again"
        )


class SpendTracker:
    """One provider's journal and its state, paid from a shared budget."""

    def __init__(self, journal: Journal, state: JournalState, rate: Rate, budget: SharedBudget) -> None:
        self.journal, self.state, self.rate, self.budget = journal, state, rate, budget
        self._unwritten = 0.0
        """USD that are set aside while the row that reserves them is being written."""
        self._changed = asyncio.Event()
        self._counts = KnownCounts()
        budget.join(self)

    @property
    def committed(self) -> float:
        """USD that are spent, may have been spent, or are reserved."""
        return self.state.spent + self.state.lost_usd + self.state.reserved + self._unwritten

    @property
    def busy(self) -> bool:
        """Something is in flight."""
        return bool(self.state.batches or self.state.calls) or self._unwritten >= _ROUNDING

    def worst_case(self, request: ProviderRequest, *, batch: bool) -> float:
        """The most USD that a request can cost."""
        return self.rate.worst_case(request.prompt_at_most, request.max_tokens, batch=batch)

    def bounded(self, request: ProviderRequest) -> ProviderRequest:
        """The request with what the provider has counted of its prompt, where a cap is to be kept."""
        return replace(request, counted_in=self._counts.at_most(request.body)) if self.budget.is_capped else request

    def learn(self, request: ProviderRequest, verdict: RequestVerdict) -> None:
        """Take in what the provider has counted of a prompt."""
        if self.budget.is_capped and verdict.tokens is not None:
            self._counts.learn(request.body, verdict.tokens.input)

    def billed(self, request: ProviderRequest, verdict: RequestVerdict, *, batch: bool) -> float:
        """USD that a request is billed; its worst case where the provider sent no usage."""
        if not verdict.billed:
            return 0.0
        if verdict.tokens is None:
            return self.worst_case(request, batch=batch)
        return self.rate.usd(verdict.tokens, batch=batch)

    def set_aside(self, usd: float) -> bool:
        """Take this from the budget until `write_reservation` has written it down; False where not so much remains.

        It takes effect at once, without waiting for the disk: between the check and the written row other tasks run,
        and must not be given the same money.
        """
        if usd > self.budget.remaining + _ROUNDING:
            return False
        self._unwritten += usd
        return True

    async def write_reservation(self, row: JournalRow) -> None:
        """Write the row of what was set aside; from then on the journal's state holds the reservation."""
        try:
            await self.write(row)
        finally:
            self._unwritten -= row["usd"]

    async def write(self, *rows: JournalRow) -> None:
        """Journal rows; the state is changed only when they are on disk."""
        for row, offset in zip(rows, await self.journal.write(*rows), strict=True):
            self.state.apply(row, offset)
        self.notify()

    def notify(self) -> None:
        """Wake everybody who waits for a change, at this tracker or at one that shares its budget."""
        self.budget.notify()

    def wake(self) -> None:
        """Let those who wait at this tracker look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_for_change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()
