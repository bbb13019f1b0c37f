"""Futures: results of threads, backends and providers handed to the conversations that await them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, TypeVar

A = TypeVar("A")


async def call_in_thread(threads: Executor, call: Callable[[], A]) -> A:
    """Return `call()`, run in one of the threads.

    A running call cannot be stopped. If cancelled, this returns only once the call has ended or can no longer start, so
    that a world is never closed while a call runs in it.
    """
    running = threads.submit(call)
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        if not running.cancel():
            with suppress(Exception):  # the cancelled caller cannot receive it
                await asyncio.wrap_future(running)
        raise


async def finish_in_thread(threads: Executor, call: Callable[[], A]) -> A:
    """Return `call()` like `call_in_thread`, but let it run to its end even if cancelled, as cleanup needs."""
    running = asyncio.wrap_future(threads.submit(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def fail_waiting(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
    """Set the error on every future that is not done."""
    for future in futures:
        if not future.done():
            future.set_exception(error)


def forward_result(waiting: asyncio.Future[A], answer: asyncio.Future[A]) -> None:
    """Copy a result or an error to the future that a conversation awaits, unless that was cancelled."""
    if answer.cancelled():
        waiting.cancel()
    elif error := answer.exception():
        if not waiting.done():
            waiting.set_exception(error)
    elif not waiting.done():
        waiting.set_result(answer.result())
