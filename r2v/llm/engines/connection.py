"""Connection to an engine without HTTP (`r2v.llm.engines.direct`): lines of JSON over a Unix socket.

    status, content = await Connection(path).post("/v1/completions", body)

Any number of requests share it. An engine that ends or falls silent fails them all with ConnectionError.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

_LONGEST_LINE = 1 << 28
"""Bytes of an answer, which has two figures for each token."""
_SILENT_SECONDS = 900.0
"""Time without an answer after which the connection is closed: an engine ends requests of a batch every few seconds."""


class Connection:
    """A connection of one event loop, opened at the first request and again after a failure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answers: dict[int, asyncio.Future[tuple[int, Any]]] = {}
        self._count = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and content of the answer. Raises OSError if there is no engine, or it ends before."""
        async with self._lock:
            if self._writer is None:
                reader, self._writer = await asyncio.open_unix_connection(str(self._path), limit=_LONGEST_LINE)
                self._reading = asyncio.create_task(self._read(reader, self._writer))
            writer = self._writer
        number = self._count = self._count + 1
        answer: asyncio.Future[tuple[int, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        writer.write(json.dumps([number, path, body]).encode() + b"\n")
        try:
            return await answer
        finally:
            self._answers.pop(number, None)

    def close(self) -> None:
        """Close the connection; the engine gives up what it was asked."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError):
                while line := await asyncio.wait_for(reader.readline(), _SILENT_SECONDS):
                    number, *content = json.loads(line)
                    if (answer := self._answers.get(number)) and not answer.done():
                        answer.set_result(tuple(content))
        finally:
            self._writer = None
            writer.close()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionError("the engine ended"))
