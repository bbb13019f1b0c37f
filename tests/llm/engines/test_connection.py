"""Lines of JSON over a Unix socket: answers in any order, and one error for all that wait when the engine ends."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from r2v.llm.engines.connection import Connection


def test_answers_come_in_any_order_and_an_end_fails_all_that_wait(tmp_path: Path) -> None:
    path = tmp_path / "socket"

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = [json.loads(await reader.readline()) for _ in range(3)]
        for number, asked, body in reversed(lines[1:]):
            writer.write(json.dumps([number, 200, [asked, body]]).encode() + b"\n")
        await writer.drain()
        writer.close()

    async def play() -> None:
        async with await asyncio.start_unix_server(engine, path):
            for _ in range(2):  # it is opened again
                first, second, third = await asyncio.gather(
                    *(connection.post("/ask", {"n": n}) for n in range(3)), return_exceptions=True
                )
                assert isinstance(first, ConnectionError)
                assert (second, third) == ((200, ["/ask", {"n": 1}]), (200, ["/ask", {"n": 2}]))
            connection.close()

    connection = Connection(path)
    asyncio.run(play())


def test_no_engine_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(Connection(tmp_path / "none").post("/health", {}))
