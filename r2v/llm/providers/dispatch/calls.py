"""The call dispatcher: direct calls, as many in flight as the provider bears.

Their number is found by additive increase and multiplicative decrease (AIMD): it grows by one for every window of
answers and is halved when the provider says slow down (429, 503, 529), which also stops all calls until Retry-After has
passed. A call whose connection broke may have been answered and billed: it is booked as lost at its worst case and sent
again; one that got no connection was never sent, and costs nothing. A run that stops waits for the calls in flight,
because their answers are paid.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from r2v.console import duration
from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.dispatch.result_handler import ResultHandler, Spawn, WallClock
from r2v.llm.providers.provider import Provider, ProviderFault
from r2v.llm.providers.provider_requests import ProviderRequest
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.log import logger
from r2v.storage.record import wait

_FIRST_WINDOW = 8
_BACKOFF, _LONGEST_BACKOFF = 0.5, 60.0
"""Seconds."""
_TOLD_FROM, _TOLD_EVERY = 60.0, 600.0
"""Seconds without an answer from which a wait is told, and between two lines."""
GRACE = 20.0
"""Seconds that a run which stops waits for direct calls: less than a cluster waits between SIGTERM and SIGKILL."""


class AIMDLimiter:
    """How many calls may be in flight (`window`), and until when (seconds of the epoch) none may be started."""

    def __init__(self, max_window: int) -> None:
        self.max_window = max_window
        self.window = float(min(_FIRST_WINDOW, max_window))
        self.pause_until = 0.0

    def on_success(self) -> None:
        """A call was answered."""
        self.window = min(float(self.max_window), self.window + 1.0 / self.window)

    def on_slow_down(self, until: float) -> None:
        """The provider asked for less. Calls that were in flight together are refused together: only the first of
        them halves the window."""
        if until > self.pause_until:
            self.window = max(1.0, self.window / 2)
            self.pause_until = until


class CallDispatcher:
    """Direct calls of one run."""

    def __init__(
        self,
        provider: Provider,
        tracker: SpendTracker,
        policy: DispatchPolicy,
        handler: ResultHandler,
        clock: WallClock,
        spawn: Spawn,
        outage: Outage,
    ) -> None:
        self._provider, self._tracker, self._outage = provider, tracker, outage
        self._handler, self._clock, self._spawn = handler, clock, spawn
        self.limiter = AIMDLimiter(policy.max_concurrent)
        self.in_flight: set[asyncio.Task[None]] = set()
        """Calls that have begun, until their results are journaled."""
        self._num_started = 0
        self._slow_downs = 0
        self._slow_since: float | None = None
        """In a row, without an answer in between, and since when."""
        self._tell_next, self._patience = 0.0, policy.outage_seconds

    def submit(self, requests: Sequence[ProviderRequest]) -> None:
        """Call these, each as soon as the limiter and the budget allow."""
        for request in requests:
            self._spawn(self._dispatch(request))

    async def drain(self) -> None:
        """Wait up to GRACE for the calls in flight: they are paid, and a journaled answer is kept."""
        if self.in_flight:
            logger.info(
                "  %s %s: stopping; waiting up to %.0f s for the answers of %d direct calls in flight",
                self._provider.name,
                self._tracker.rate.model,
                GRACE,
                len(self.in_flight),
            )
            await asyncio.wait(self.in_flight, timeout=GRACE)

    async def _dispatch(self, request: ProviderRequest) -> None:
        worst_case = self._tracker.worst_case(request, batch=False)
        await self._wait_for_turn(worst_case)
        self._num_started += 1
        try:
            fault = await self._call(request, worst_case)
            if fault is not None and fault.kind == "retry":
                is_outage = self._outage.failed(fault)
                if not (fault.slow_down or is_outage):
                    await self._clock.sleep(min(_LONGEST_BACKOFF, _BACKOFF * 2.0**request.attempt))
                self._handler.requeue([request], fault.reason, free=fault.slow_down or is_outage)
        finally:
            self._num_started -= 1
            self._tracker.notify()

    async def _call(self, request: ProviderRequest, worst_case: float) -> ProviderFault | None:
        """Call once and journal the result; the fault, if it was one."""
        task = asyncio.current_task()
        assert task is not None
        self.in_flight.add(task)
        try:
            await self._tracker.write_reservation(
                {"row": "call", "id": request.custom_id, "sha256": request.sha256, "usd": worst_case}
            )
            result = await self._provider.call(request)
            self.limiter.on_success()
            self._outage.answered()
            if self._tell_next:
                wait(self._provider.name, None)
            self._slow_downs, self._slow_since, self._tell_next = 0, None, 0.0
            if result.remaining == 0 and result.reset:
                self._tell_wait("its rate limit is used up", 0.0, result.reset)
                self.limiter.pause_until = max(self.limiter.pause_until, self._clock.now() + result.reset)
            again = await self._handler.record_results([(request, result.verdict)], None)
            self._handler.requeue(again, result.verdict.reason, free=True)
        except ProviderFault as fault:
            await self._record_fault(request, fault, worst_case)
            return fault
        finally:
            self.in_flight.discard(task)
        return None

    async def _wait_for_turn(self, worst_case: float) -> None:
        """Wait for the end of an outage and of a pause, a place in the window, and money, in this order; the money is
        set aside.

        Nothing is awaited between the last check and the return, so no other task can take the same place.
        """
        while True:
            await self._outage.over()
            pause = self.limiter.pause_until - self._clock.now()
            if pause > 0:
                await self._clock.sleep(pause)
            elif self._num_started >= int(self.limiter.window):
                await self._tracker.wait_for_change()
            elif self._tracker.set_aside(worst_case):
                return
            elif await self._tracker.budget.extend(worst_case):
                continue
            elif self._tracker.budget.idle:
                raise self._tracker.budget.exhausted(worst_case)
            else:
                await self._tracker.wait_for_change()

    async def _record_fault(self, request: ProviderRequest, fault: ProviderFault, worst_case: float) -> None:
        too_long = self._slow_down(fault) if fault.slow_down else None
        # 503 and 529 are refusals for load, before anything is run; other 5xx may come after the answer was made
        if fault.ambiguous and fault.status not in (503, 529):
            await self._tracker.write({"row": "lost", "id": request.custom_id, "usd": worst_case, "why": fault.reason})
        else:
            await self._handler.record_results([(request, replace(fault.verdict, reason=fault.reason))], None)
        if too_long is not None:
            raise too_long

    def _slow_down(self, fault: ProviderFault) -> EnvironmentFault | None:
        """Pause all calls; the error of a pause that is longer than an outage may be, or of pauses that go on for so
        long without an answer."""
        now = self._clock.now()
        self._slow_downs += now >= self.limiter.pause_until
        self._slow_since = now if self._slow_since is None else self._slow_since
        backoff = min(_LONGEST_BACKOFF, _BACKOFF * 2.0**self._slow_downs)
        pause = backoff if fault.retry_after is None else fault.retry_after
        waited = now - self._slow_since
        self.limiter.on_slow_down(now + pause)
        if max(pause, waited) > self._patience:
            return EnvironmentFault(
                f"{self._provider.name}: {fault.reason}; asks to wait for {duration(pause)}, after {duration(waited)} "
                f"without an answer, and {duration(self._patience)} are waited at most: run the same command again "
                "later, everything answered is kept"
            )
        self._tell_wait(fault.reason, waited, pause)
        return None

    def _tell_wait(self, reason: str, waited: float, pause: float) -> None:
        """Warn of a wait that comes to a minute, and now and then while it goes on."""
        now = self._clock.now()
        if waited + pause < _TOLD_FROM:
            return
        wait(self._provider.name, reason, now + pause)
        if now >= self._tell_next:
            self._tell_next = now + _TOLD_EVERY
            ends = time.strftime("%H:%M:%S", time.localtime(now + pause))
            logger.warning(
                "  %s: %s; no answer for %s, asked again at %s", self._provider.name, reason, duration(waited), ends
            )
