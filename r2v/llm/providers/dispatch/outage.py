"""Outage: a provider that cannot be reached is waited for, minutes or hours, and said to be.

A call that finds no connection says nothing about its request, so it does not count as an attempt; neither does one
that fails like the three before it, whichever request they carried. From then on nothing is sent: one task looks at
growing intervals whether the provider is there, by a free call where the provider has one, and lets the others go on.
Who never reached the provider in this process has no outage but a wrong address or no network, and ends soon.
"""

from __future__ import annotations

import asyncio

from r2v.console import duration
from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.result_handler import Spawn, WallClock
from r2v.llm.providers.provider import Pingable, Provider, ProviderFault
from r2v.log import logger
from r2v.storage.record import wait

_IN_A_ROW = 4
"""Failures without an answer in between that are nobody's own."""
_LONGEST_PAUSE, _TOLD_EVERY = 60.0, 600.0
"""Seconds between two looks, at most, and between two lines."""


class Outage:
    """Whether one provider can be reached."""

    def __init__(self, provider: Provider, policy: DispatchPolicy, clock: WallClock, spawn: Spawn) -> None:
        self._provider, self._policy, self._clock, self._spawn = provider, policy, clock, spawn
        self._open = asyncio.Event()
        self._open.set()
        self._has_answered = False
        self._failures = 0
        self._since: float | None = None
        self._told = self._pause = 0.0
        self._reason = ""

    def answered(self) -> None:
        """The provider was heard of, whatever it said."""
        self._has_answered, self._failures = True, 0
        if self._since is not None:
            logger.warning(
                "  %s: answers again after %s", self._provider.name, duration(self._clock.now() - self._since)
            )
            wait(self._provider.name, None)
            self._since = None

    def failed(self, fault: ProviderFault) -> bool:
        """A call failed; whether that is an outage, and no matter of its request."""
        if fault.status is not None and fault.status < 500:
            self.answered()
            return False
        self._failures += 1
        # without a free call, what fails alone for ever could not be told from an outage
        if fault.sent and (self._failures < _IN_A_ROW or not isinstance(self._provider, Pingable)):
            return False
        self._reason = fault.reason
        if self._open.is_set():
            self._open.clear()
            self._spawn(self._look())
        return True

    async def over(self) -> None:
        """Wait until the provider may be tried again."""
        await self._open.wait()

    async def _look(self) -> None:
        """Until it is there. Raises EnvironmentFault where it stays away."""
        if self._since is None:
            self._since = self._told = self._clock.now()
            self._pause = min(1.0, self._patience / 8)
            logger.warning(
                "  %s: %s; nothing is sent until it answers, for %s at most",
                self._provider.name,
                self._reason,
                duration(self._patience),
            )
            wait(self._provider.name, self._reason, self._since + self._patience)
        while True:
            await self._clock.sleep(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            if self._since is None:  # a call that was under way has been answered meanwhile
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
            advice = "" if self._has_answered else "; see to the network and to the endpoint's address"
            raise EnvironmentFault(
                f"{self._provider.name}: {self._reason}, for {duration(now - self._since)}{advice}; everything "
                "answered is kept: run the same command again"
            )
        if now - self._told >= _TOLD_EVERY:
            self._told = now
            logger.warning(
                "  %s: still not there after %s (%s)", self._provider.name, duration(now - self._since), self._reason
            )

    async def _is_there(self) -> bool:
        if not isinstance(self._provider, Pingable):
            return True  # the next request is the look
        try:
            await self._provider.ping()
        except ProviderFault as fault:
            self._reason = fault.reason
            return fault.status is not None and fault.status < 500
        return True
