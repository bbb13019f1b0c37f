"""Running a coroutine from synchronous code, also in a notebook with its running event loop.

run_async(play(conversations))
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, run in this thread, or in another one if this has a running event loop.

    Ctrl-C cancels the coroutine and waits until it has ended, as with `asyncio.run`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    begun: list[asyncio.Task[Any]] = []

    async def cancellable() -> T:
        begun.extend(filter(None, [asyncio.current_task()]))
        return await main

    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(contextvars.copy_context().run, asyncio.run, cancellable())
        try:
            return ended.result()
        except KeyboardInterrupt:
            for task in begun:
                task.get_loop().call_soon_threadsafe(task.cancel)
            raise
