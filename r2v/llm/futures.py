"""Futures: how what a thread, a backend or a provider came to reaches the conversation that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, TypeVar

A = TypeVar("A")


async def call_in_thread(threads: Executor, call: Callable[[], A]) -> A:
    """What `call` gives, made in one of the threads.

    A call that has begun can't be taken back. Cancelled, this ends when the call has ended or will never begin, so that
    whatever closes a world next finds nothing running in it.
    """
    running = threads.submit(call)
    try:
        return await asyncio.wrap_future(running)
    except asyncio.CancelledError:
        if not running.cancel():
            with suppress(Exception):  # nobody is left to hear of it
                await asyncio.wrap_future(running)
        raise


async def finish_in_thread(threads: Executor, call: Callable[[], A]) -> A:
    """The same for what has to be done in any case: cancelled, this ends when the call was made and has ended."""
    running = asyncio.wrap_future(threads.submit(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def fail_waiting(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
    """Raise the error in everybody who still waits for one of these futures."""
    for future in futures:
        if not future.done():
            future.set_exception(error)


def forward_result(waiting: asyncio.Future[A], answer: asyncio.Future[A]) -> None:
    """Pass a result or an error on to the future that a conversation awaits; the conversation may be gone."""
    if answer.cancelled():
        waiting.cancel()
    elif error := answer.exception():
        if not waiting.done():
            waiting.set_exception(error)
    elif not waiting.done():
        waiting.set_result(answer.result())
