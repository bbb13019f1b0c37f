"""Coroutines are run from ordinary code, in a notebook's cell too."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading

import pytest

from r2v.event_loop import run_async

NAME = contextvars.ContextVar("NAME", default="nobody")


async def told() -> tuple[str, int]:
    await asyncio.sleep(0)
    return NAME.get(), threading.get_ident()


def test_without_a_loop_it_runs_in_this_thread() -> None:
    assert run_async(told()) == ("nobody", threading.get_ident())


def test_in_a_running_loop_it_runs_in_another_thread_with_the_callers_context() -> None:
    async def cell() -> tuple[str, int]:
        NAME.set("the cell")
        return run_async(told())

    name, thread = asyncio.run(cell())
    assert name == "the cell" and thread != threading.get_ident()


def test_an_exception_comes_through_and_the_next_cell_runs() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    async def cells() -> tuple[str, int]:
        with pytest.raises(ValueError, match="broken"):
            run_async(broken())
        return run_async(told())

    assert asyncio.run(cells())[0] == "nobody"


def test_ctrl_c_ends_what_runs_in_the_other_thread() -> None:
    ended: list[str] = []

    async def long() -> None:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("cancelled")

    async def cell() -> None:
        run_async(long())

    loop = asyncio.new_event_loop()  # as a notebook's, which leaves SIGINT to Python
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    loop.close()
    assert ended == ["cancelled"]
