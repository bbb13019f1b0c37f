"""The call lane: direct calls, as many at a time as the provider bears.

The width is found by additive increase and multiplicative decrease: it grows by one for every width of answers and
is halved when the provider says slow down (429, 503, 529), which also stops everybody until Retry-After has passed.
A call whose connection broke may have been answered and billed: it is booked as lost at its worst case and made anew.
A run that stops waits for the calls that are out: their answers are paid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from r2v.llm.providers.dispatch.batches import Outcome, Spawn
from r2v.llm.providers.dispatch.dispatch_policy import Plan
from r2v.llm.providers.dispatch.reconcile import Times
from r2v.llm.providers.dispatch.results import account
from r2v.llm.providers.provider import Direct, ProviderFault
from r2v.llm.providers.provider_requests import Ask, Verdict
from r2v.llm.providers.spending.budget import Till
from r2v.log import logger

_FIRST = 8
_BACKOFF, _LONGEST = 0.5, 60.0
GRACE = 20.0
"""Seconds that a run which stops waits for direct calls: less than a cluster waits between SIGTERM and SIGKILL."""


class Width:
    """How many calls may be out at the same time, and until when none may."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.now = float(min(_FIRST, most))
        self.pause_until = 0.0

    def well(self) -> None:
        """A call was answered."""
        self.now = min(float(self.most), self.now + 1.0 / self.now)

    def slow(self, until: float) -> None:
        """The provider asked for less. Many calls that were out together are one such wish."""
        if until > self.pause_until:
            self.now = max(1.0, self.now / 2)
            self.pause_until = until


class CallLane:
    """Direct calls of one run."""

    def __init__(
        self, provider: Direct, name: str, till: Till, plan: Plan, outcome: Outcome, times: Times, spawn: Spawn
    ) -> None:
        self._provider, self._name, self._till, self._plan = provider, name, till, plan
        self._outcome, self._times, self._spawn = outcome, times, spawn
        self.width = Width(plan.max_concurrent)
        self.flying: set[asyncio.Task[None]] = set()
        """Calls that are out, until what came of them is journaled."""
        self._out = 0
        self._strain = 0

    def take(self, asks: Sequence[Ask]) -> None:
        """Ask these, each as soon as there is room for it."""
        for ask in asks:
            self._spawn(self._ask(ask))

    async def drain(self) -> None:
        """Wait, a while, for the answers of calls that are out: they are paid, and one that is journaled is kept."""
        if self.flying:
            logger.info(
                "  %s: stopping; %d direct calls are under way, their answers are waited for (%.0f s at most)",
                self._name,
                len(self.flying),
                GRACE,
            )
            await asyncio.wait(self.flying, timeout=GRACE)

    async def _ask(self, ask: Ask) -> None:
        worst = self._till.worst(ask, batch=False)
        await self._room(worst)
        self._out += 1
        try:
            fault = await self._call(ask, worst)
            if fault is not None and fault.kind == "account":
                raise account(self._name, fault.reason)
            if fault is not None and fault.kind == "retry":
                if not fault.slow_down:
                    await self._times.sleep(min(_LONGEST, _BACKOFF * 2.0**ask.attempt))
                self._outcome.again([ask], fault.reason, free=fault.slow_down)
        finally:
            self._out -= 1
            self._till.stir()

    async def _call(self, ask: Ask, worst: float) -> ProviderFault | None:
        """Call, and journal what came of it; the fault if it was one."""
        task = asyncio.current_task()
        assert task is not None
        self.flying.add(task)
        try:
            await self._till.reserve({"row": "call", "id": ask.custom_id, "sha256": ask.sha256, "usd": worst})
            called = await self._provider.call(ask)
            self.width.well()
            self._strain = 0
            if called.remaining == 0 and called.reset:
                self.width.pause_until = max(self.width.pause_until, self._times.now() + called.reset)
            await self._outcome.settle([(ask, called.verdict)], None)
        except ProviderFault as fault:
            await self._failed(ask, fault, worst)
            return fault
        finally:
            self.flying.discard(task)
        return None

    async def _room(self, worst: float) -> None:
        """Wait for a place, the end of a pause, and money; holds the money."""
        while True:
            wait = self.width.pause_until - self._times.now()
            if wait > 0:
                await self._times.sleep(wait)
            elif self._out >= int(self.width.now):
                await self._till.change()
            elif self._till.hold(worst):
                return
            elif self._till.purse.idle:
                raise self._till.purse.exhausted(worst)
            else:
                await self._till.change()

    async def _failed(self, ask: Ask, fault: ProviderFault, worst: float) -> None:
        now = self._times.now()
        if fault.slow_down:
            self._strain += now >= self.width.pause_until
            asked = min(_LONGEST, _BACKOFF * 2.0**self._strain) if fault.retry_after is None else fault.retry_after
            self.width.slow(now + asked)
        if fault.ambiguous and fault.status not in (503, 529):
            await self._till.write({"row": "lost", "id": ask.custom_id, "usd": worst, "why": fault.reason})
        else:
            kind = "retry" if fault.kind == "account" else fault.kind
            await self._outcome.settle([(ask, Verdict(kind=kind, reason=fault.reason, billed=False))], None)
