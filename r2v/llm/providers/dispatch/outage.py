"""Outage: the wait, for minutes or hours, for a provider that cannot be reached.

A call without a connection says nothing about its request, so it does not count as an attempt; neither does a call that
fails after three other failures in a row. From then on nothing is sent: one task checks at growing intervals whether
the provider can be reached, by a free call if the provider has one, and then releases the others. A provider that was
never reached in this process has a wrong address or there is no network, so the run ends soon.
"""

from __future__ import annotations

import asyncio

from r2v.console import duration
from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, Spawn, WallClock
from r2v.llm.providers.provider import Pingable, Provider, ProviderFault
from r2v.log import logger
from r2v.storage.record import wait

_IN_A_ROW = 4
"""Number of failures without an answer in between that count as an outage rather than as faults of their requests."""
_LONGEST_PAUSE, _WARN_EVERY = 60.0, 600.0
"""Most seconds between two checks, and seconds between two log lines."""


class Outage:
    """The reachability of one provider."""

    def __init__(self, provider: Provider, policy: DispatchPolicy, clock: WallClock, spawn: Spawn) -> None:
        self._provider, self._policy, self._clock, self._spawn = provider, policy, clock, spawn
        self._open = asyncio.Event()
        self._open.set()
        self._has_answered = False
        self._failures = 0
        self._since: float | None = None
        self._warned_at = self._pause = 0.0
        self._reason = ""

    def answered(self) -> None:
        """Record an answer of the provider, an error included."""
        self._has_answered, self._failures = True, 0
        if self._since is not None:
            logger.warning(
                "  provider reachable again: provider=%s after=%s",
                self._provider.name,
                duration(self._clock.now() - self._since),
            )
            wait(self._provider.name, None)
            self._since = None

    def failed(self, fault: ProviderFault) -> bool:
        """Record a failed call; return True if the failure is an outage rather than a fault of its request."""
        if fault.status is not None and fault.status < 500:
            self.answered()
            return False
        self._failures += 1
        # without a free call, one request that always fails could not be distinguished from an outage
        if fault.sent and (self._failures < _IN_A_ROW or not isinstance(self._provider, Pingable)):
            return False
        self._reason = fault.reason
        if self._open.is_set():
            self._open.clear()
            self._spawn(self._look())
        return True

    async def over(self) -> None:
        """Wait until requests may be sent again."""
        await self._open.wait()

    async def _look(self) -> None:
        """Check until the provider can be reached. Raise EnvironmentFault when the time allowed is over."""
        if self._since is None:
            self._since = self._warned_at = self._clock.now()
            self._pause = min(1.0, self._patience / 8)  # several checks fit even into a short patience
            logger.warning(
                "  provider unreachable; nothing is sent until it answers: provider=%s at_most=%s reason=%s",
                self._provider.name,
                duration(self._patience),
                self._reason,
            )
            wait(self._provider.name, self._reason, self._since + self._patience)
        while True:
            await self._clock.sleep(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            if self._since is None:  # a call in flight has been answered meanwhile
                self._open.set()
                return
            self._require_patience()
            if await self._is_there():
                self._failures = 0
                self._open.set()
                return

    @property
    def _patience(self) -> float:
        longest = self._policy.outage_seconds
        return longest if self._has_answered else min(self._policy.reach_seconds, longest)

    def _require_patience(self) -> None:
        assert self._since is not None
        now = self._clock.now()
        if now - self._since >= self._patience:
            advice = "" if self._has_answered else "; check the network and the endpoint's address"
            raise EnvironmentFault(
                f"{self._provider.name}: {self._reason}, for {duration(now - self._since)}{advice}; everything "
                "answered is kept: run the same command again"
            )
        if now - self._warned_at >= _WARN_EVERY:
            self._warned_at = now
            logger.warning(
                "  provider still unreachable: provider=%s after=%s reason=%s",
                self._provider.name,
                duration(now - self._since),
                self._reason,
            )

    async def _is_there(self) -> bool:
        if not isinstance(self._provider, Pingable):
            return True  # the next request is the check
        try:
            await self._provider.ping()
        except ProviderFault as fault:
            self._reason = fault.reason
            return fault.status is not None and fault.status < 500  # a refusal, so the provider answers
        return True
