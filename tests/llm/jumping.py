"""A virtual clock: an event loop whose time passes only when nothing is left to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from r2v.llm.providers.dispatch.dispatch_policy import WallClock

R = TypeVar("R")


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose sleeps take no time; its time is their sum."""

    def __init__(self) -> None:
        self.now = 0.0
        loop = self

        class Selector(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> Any:
                if timeout is not None and timeout > 0:
                    loop.now += timeout
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now

    @property
    def clock(self) -> WallClock:
        """Return the loop's time as a clock for providers."""
        return WallClock(now=self.time, sleep=asyncio.sleep)

    def play(self, work: Coroutine[Any, Any, R]) -> R:
        """Run to the end, and close the loop."""
        with asyncio.Runner(loop_factory=lambda: self) as runner:
            return runner.run(work)
