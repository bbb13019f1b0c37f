"""Spending journal: each row about money is written and synced before the action it records.

    {"row": "open", "version": 1, "run": "3f9c0a12", "scope": {...}}       the journal's owner
    {"row": "claims", "keys": [...]}                                       all requests in flight of a new writer
    {"row": "claim", "keys": [...]}                                        requests that no other process may send
    {"row": "release", "keys": [...]}                                      requests that any process may send again
    {"row": "intent", "batch": "3f9c0a12-b0", "count": 40, "usd": 0.21}    the batch's input file is on disk
    {"row": "file", "batch": ..., "id": "file-..."}                        the input file is uploaded (OpenAI)
    {"row": "sending", "batch": ..., "at": ..., "newest": ...}             the create call may be sent from now on
    {"row": "unknown", "batch": ..., "at": ...}                            it was sent, and its outcome is unknown
    {"row": "absent", "batch": ..., "why": ...}                            no batch was created
    {"row": "created", "batch": ..., "id": "batch_..."}                    this batch was created
    {"row": "ended", "batch": ..., "state": "completed"}
    {"row": "answer", "id": "3f9c0a12-...-0-0", "sha256": ..., "text": ..., "usd": ...}    one line of results
    {"row": "failed", "id": ..., "kind": "retry", "reason": ...}
    {"row": "applied", "batch": ..., "ok": 38, ...}                        all its requests are accounted for
    {"row": "dropped", "batch": ..., "why": ...}                           given up: its requests are free again
    {"row": "call", "id": ..., "usd": ...}                                 a direct call may be sent from now on
    {"row": "lost", "id": ..., "usd": ...}                                 it was sent, and its answer never came
    {"row": "forward", "id": ..., "usd": ..., "labels": [...]}             a client's request may be forwarded (`serve`)
    {"row": "served", "id": ..., "usd": ...}                               its reply has ended, and cost this much

JSON Lines rather than SQLite, whose locks fail on NFS: one process writes, under the folder's lease. A torn last line
is a row that was never written. Any other missing or altered byte shows in the journal's witness file
(`r2v.storage.witness`), and the journal is refused unchanged.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from r2v.errors import EnvironmentFault, InputError
from r2v.storage.file_system import sync_folder
from r2v.storage.files import writing
from r2v.storage.witness import Witness

_REMEDY = (
    "it records what is paid, so nothing is sent: restore the file from a backup, or start a new run (which pays anew)"
)
_BEGINS = b'{"row"'  # start of every row: a torn tail that begins otherwise is damage, not a cut-off write

JournalRow = dict[str, Any]
"""One row as plain JSON; `row` names its kind."""


class Journal:
    """A journal file open for appending. sync: flushes written rows to the disk, so that they survive a power cut.
    lazy: rows reach the operating system at once, which survives a kill of the process, and are synced at most so many
    seconds later."""

    def __init__(self, path: Path, *, sync: Callable[[int], None] = os.fsync, lazy: float | None = None) -> None:
        self.path, self._sync, self._lazy = path, sync, lazy
        self._syncing: asyncio.Task[None] | None = None
        self._unsynced: EnvironmentFault | None = None
        self._file: BinaryIO | None = None
        self._waiting: list[tuple[bytes, asyncio.Future[int]]] = []

    def open(self) -> Iterator[tuple[int, JournalRow]]:
        """Yield the rows with their byte offsets, then truncate a torn tail; exhaust it before the first write. Raise
        InputError for a malformed line and for a file that differs from its witness; it stays unchanged."""
        self._witness = witness = Witness(self.path, _REMEDY)
        witness.require_file()
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
            sync_folder(self.path.parent)  # a new file survives a power cut only with its folder's entry
        self._file.seek(0)
        offset = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                if not _BEGINS.startswith(line[: len(_BEGINS)]):
                    raise self._no_row(number)
                break
            yield offset, self._row(line, number)
            witness.see(line)
            offset += len(line)
        witness.require_all()
        with writing(self.path):
            self._file.truncate(offset)
            self._file.seek(offset)
            witness.write()

    def _row(self, line: bytes, number: int) -> JournalRow:
        try:
            row: JournalRow = json.loads(line)
            assert isinstance(row["row"], str)
        except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
            raise self._no_row(number) from None
        return row

    def _no_row(self, number: int) -> InputError:
        return InputError(f"{self.path}:{number}: not a row of a journal; {_REMEDY}")

    async def write(self, *rows: JournalRow) -> list[int]:
        """Append rows and return their byte offsets once they are on disk. Raise EnvironmentFault if the disk refuses.

        Rows written in the same turn of the event loop share one sync: thousands of conversations would otherwise wait
        for one fsync each.
        """
        loop = asyncio.get_running_loop()
        if rows and not self._waiting:
            loop.call_soon(self._flush)
        futures: list[asyncio.Future[int]] = []
        for row in rows:
            line = json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"
            futures.append(loop.create_future())
            self._waiting.append((line, futures[-1]))
        return list(await asyncio.gather(*futures))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        assert self._file is not None, "the journal is not open"
        try:
            if self._unsynced is not None:
                raise self._unsynced  # after a failed fsync the kernel may drop pages, and later ones succeed
            with writing(self.path):
                offset = self._file.seek(0, os.SEEK_END)
                lines = b"".join(line for line, _ in waiting)
                self._witness.see(lines)
                self._file.write(lines)
                self._file.flush()
                if self._lazy is None:
                    self._sync(self._file.fileno())
                    self._witness.write()
                elif self._syncing is None or self._syncing.done():
                    self._syncing = asyncio.get_running_loop().create_task(self._sync_later(self._lazy))
        except EnvironmentFault as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for line, future in waiting:
            if not future.done():  # its task may have been cancelled; its row is written all the same
                future.set_result(offset)
            offset += len(line)

    async def _sync_later(self, seconds: float) -> None:
        synced = None
        while self._file is not None and synced != self._witness.seen:
            await asyncio.sleep(seconds)
            # a descriptor of its own: `close` may close the file while the thread syncs
            synced, descriptor = self._witness.seen, os.dup(self._file.fileno())
            try:
                with writing(self.path):
                    await asyncio.to_thread(self._sync, descriptor)
                    self._witness.write(synced)
            except EnvironmentFault as error:
                self._unsynced = error  # raised by the next write
                return
            finally:
                os.close(descriptor)

    def read(self, offset: int) -> JournalRow:
        """Return the row at a byte offset."""
        assert self._file is not None, "the journal is not open"
        self._file.seek(offset)
        return self._row(self._file.readline(), 0)

    def close(self) -> None:
        """Write pending rows and close the file."""
        if self._waiting:
            self._flush()
        if self._syncing is not None:
            self._syncing.cancel()
        if self._file is not None:
            if self._lazy is not None and self._unsynced is None:
                with writing(self.path):
                    self._sync(self._file.fileno())
                    self._witness.write()
            self._file.close()
            self._file = None
