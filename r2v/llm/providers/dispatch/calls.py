"""Call dispatcher: direct calls, as many in flight as the provider's rate limit accepts.

Their number follows additive increase and multiplicative decrease (AIMD): it grows by one per window of answers, and is
halved when the provider asks to slow down (429, 503, 529), which also pauses all calls until Retry-After has passed. A
call whose connection broke may have been answered and billed: it is booked as lost at its worst case and sent again. A
call without a connection was never sent, and costs nothing. A run that stops waits for the calls in flight, because
their answers are paid for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from r2v.console import duration
from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, ResultHandler, Spawn, WallClock
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.provider import Provider, ProviderFault
from r2v.llm.providers.provider_requests import ProviderRequest
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.log import logger
from r2v.storage.record import wait

_FIRST_WINDOW = 8  # calls: a wrong guess costs one refusal, or a few rounds of growth
_BACKOFF, _LONGEST_BACKOFF = 0.5, 60.0
"""Seconds of the first and of the longest backoff."""
_WARN_FROM, _WARN_EVERY = 60.0, 600.0
"""Seconds without an answer from which a wait is logged, and between two log lines."""
GRACE = 20.0
"""Seconds that a stopping run waits for direct calls: less than a cluster waits between SIGTERM and SIGKILL."""


class AIMDLimiter:
    """Limit on calls in flight (`window`), and the Unix time in seconds before which none may start."""

    def __init__(self, max_window: int) -> None:
        self.max_window = max_window
        self.window = float(min(_FIRST_WINDOW, max_window))
        self.pause_until = 0.0

    def on_success(self) -> None:
        """Grow the window after an answered call."""
        self.window = min(float(self.max_window), self.window + 1.0 / self.window)

    def on_slow_down(self, until: float) -> None:
        """Halve the window and pause until a Unix time. Calls in flight together are refused together, so only the
        first refusal of a pause halves it."""
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
        """Calls whose results are not yet journaled."""
        self._num_started = 0
        self._slow_downs = 0
        self._slow_since: float | None = None
        """Start of the current row of slow-downs without an answer."""
        self._warn_next, self._patience = 0.0, policy.outage_seconds

    def submit(self, requests: Sequence[ProviderRequest]) -> None:
        """Call requests, each as soon as the limiter and the budget allow."""
        for request in requests:
            self._spawn(self._dispatch(request))

    async def drain(self) -> None:
        """Wait up to GRACE for the calls in flight, whose answers are paid for."""
        if self.in_flight:
            logger.info(
                "  stopping; waiting for direct calls: provider=%s model=%s calls=%d at_most=%.0fs",
                self._provider.name,
                self._tracker.rate.model,
                len(self.in_flight),
                GRACE,
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
                if not (fault.slow_down or is_outage):  # both have waits of their own, common to all calls
                    await self._clock.sleep(min(_LONGEST_BACKOFF, _BACKOFF * 2.0**request.attempt))
                self._handler.requeue([request], fault.reason, free=fault.slow_down or is_outage)
        finally:
            self._num_started -= 1
            self._tracker.notify()

    async def _call(self, request: ProviderRequest, worst_case: float) -> ProviderFault | None:
        """Make one call and journal its result; return its fault, if any."""
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
            if self._warn_next:
                wait(self._provider.name, None)
            self._slow_downs, self._slow_since, self._warn_next = 0, None, 0.0
            if result.remaining == 0 and result.reset:
                # pause before the provider refuses, which would halve the window
                self._warn_of_wait("rate limit used up", 0.0, result.reset)
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
        """Wait for the end of an outage and of a pause, for a free slot in the window and for money, in this order, and
        set the money aside.

        Nothing is awaited between the last check and the return, so no other task can take the same slot.
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
        # 503 and 529 refuse for load before anything is run; other 5xx may follow a billed answer
        if fault.ambiguous and fault.status not in (503, 529):
            await self._tracker.write({"row": "lost", "id": request.custom_id, "usd": worst_case, "why": fault.reason})
        else:
            await self._handler.record_results([(request, replace(fault.verdict, reason=fault.reason))], None)
        if too_long is not None:
            raise too_long

    def _slow_down(self, fault: ProviderFault) -> EnvironmentFault | None:
        """Pause all calls. Return an error if the pause, or a row of pauses without an answer, exceeds the time allowed
        for an outage."""
        now = self._clock.now()
        self._slow_downs += now >= self.limiter.pause_until  # refusals within one pause count once
        self._slow_since = now if self._slow_since is None else self._slow_since
        backoff = min(_LONGEST_BACKOFF, _BACKOFF * 2.0**self._slow_downs)
        pause = backoff if fault.retry_after is None else fault.retry_after
        waited = now - self._slow_since
        self.limiter.on_slow_down(now + pause)
        if max(pause, waited) > self._patience:
            return EnvironmentFault(
                f"{self._provider.name}: {fault.reason}; it asks to wait for {duration(pause)} after "
                f"{duration(waited)} without an answer, allowed are {duration(self._patience)}: run the same command "
                "again later, everything answered is kept"
            )
        self._warn_of_wait(fault.reason, waited, pause)
        return None

    def _warn_of_wait(self, reason: str, waited: float, pause: float) -> None:
        """Record a wait of a minute or more, and log it every ten minutes."""
        now = self._clock.now()
        if waited + pause < _WARN_FROM:
            return
        wait(self._provider.name, reason, now + pause)
        if now >= self._warn_next:
            self._warn_next = now + _WARN_EVERY
            ends = time.strftime("%H:%M:%S", time.localtime(now + pause))
            logger.warning(
                "  provider asks to wait: provider=%s without_answer=%s next_call=%s reason=%s",
                self._provider.name,
                duration(waited),
                ends,
                reason,
            )
