"""Resources of a wave engine in use: its threads, and the remotes that it has entered.

They are opened by the first who holds them and closed after the last: a run of conversations holds them for its length,
a single question in an event loop of the user's own until it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from r2v.llm.ports import Port

_MODEL_THREADS = 32
"""Most backends that answer at the same time. A thread is started when it is needed."""


class EngineResources:
    """Threads and entered remotes of an engine; `worlds`, `encoder` and `models` exist while it is held."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._holders = 0
        self._is_open = False

    @asynccontextmanager
    async def hold(self, ports: Sequence[Port[Any, Any]]) -> AsyncIterator[None]:
        """Open what is not open yet, the remotes of these ports included. Raise RuntimeError in a second event loop
        while another one holds them."""
        self._bind()
        self._holders += 1  # before the lock: who closes looks again, and a cancelled wait leaves nothing behind
        try:
            async with self._lock:
                await self._open(ports)
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                async with self._lock:
                    if not self._holders and self._is_open:
                        await self._close()

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._holders and not self._is_open:
            self._loop, self._lock = loop, asyncio.Lock()
        elif loop is not self._loop:
            raise RuntimeError("a wave engine serves one event loop at a time; make a Waves of its own for each loop")

    async def _open(self, ports: Sequence[Port[Any, Any]]) -> None:
        if not self._is_open:
            self.worlds = ThreadPoolExecutor(self._workers)
            self.encoder = ThreadPoolExecutor(1)  # a tokenizer serves no two at once
            self.models = ThreadPoolExecutor(max(_MODEL_THREADS, len(ports)))
            self._remotes, self._entered = AsyncExitStack(), set[int]()
            self._is_open = True
        for port in ports:
            if port.remote is not None and id(port) not in self._entered:
                await self._remotes.enter_async_context(port.remote)
                self._entered.add(id(port))

    async def _close(self) -> None:
        try:
            await self._remotes.aclose()
        finally:
            self._is_open = False
            for threads in (self.models, self.encoder, self.worlds):
                threads.shutdown()
