"""Positions in the journal: each row is read back from its own, whatever else waits for the same sync."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.providers.spending.journal import Journal


def opened(path: Path, **settings: object) -> Journal:
    journal = Journal(path, **settings)
    list(journal.open())
    return journal


def test_rows_of_one_flush_are_each_read_back_at_their_own_place(tmp_path: Path) -> None:
    async def write() -> None:
        journal = opened(tmp_path / "journal")
        rows = [{"row": "answer", "text": "é" * n} for n in (1, 50, 3)]
        at_once = await journal.write(*rows)
        both = await asyncio.gather(journal.write({"row": "a"}), journal.write({"row": "b"}))
        offsets = [*at_once, *(offset for pair in both for offset in pair)]
        assert [journal.read(offset) for offset in offsets] == [*rows, {"row": "a"}, {"row": "b"}]
        assert len(set(offsets)) == 5 and offsets[0] == 0
        journal.close()
        assert [offset for offset, _ in Journal(tmp_path / "journal").open()] == offsets

    asyncio.run(write())


def test_who_no_longer_waits_takes_no_answer_from_those_behind(tmp_path: Path) -> None:
    async def write() -> None:
        journal = opened(tmp_path / "journal")
        cancelled = asyncio.ensure_future(journal.write({"row": "cancelled"}))
        patient = asyncio.ensure_future(journal.write({"row": "patient"}))
        await asyncio.sleep(0)
        cancelled.cancel()
        (offset,) = await asyncio.wait_for(patient, 10)
        assert journal.read(offset) == {"row": "patient"} and offset > 0, "both rows are on disk"
        journal.close()

    asyncio.run(write())


def test_who_no_longer_waits_hides_no_refusal_from_those_behind(tmp_path: Path) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    async def write() -> None:
        journal = opened(tmp_path / "journal", sync=full)
        cancelled = asyncio.ensure_future(journal.write({"row": "cancelled"}))
        patient = asyncio.ensure_future(journal.write({"row": "patient"}))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(EnvironmentFault, match="No space left"):
            await asyncio.wait_for(patient, 10)

    asyncio.run(write())


def test_what_waits_is_written_when_the_journal_is_closed_and_a_row_after_it_follows(tmp_path: Path) -> None:
    async def write() -> None:
        journal = opened(tmp_path / "journal")
        waiting = asyncio.ensure_future(journal.write({"row": "last"}))
        await asyncio.sleep(0)
        journal.close()
        assert await asyncio.wait_for(waiting, 10) == [0]

    asyncio.run(write())
    again = Journal(tmp_path / "journal")
    assert list(again.open()) == [(0, {"row": "last"})]
    assert asyncio.run(again.write({"row": "next"})) == [len(b'{"row":"last"}\n')]
    again.close()


def test_a_torn_tail_is_cut_and_the_next_row_stands_in_its_place(tmp_path: Path) -> None:
    whole = b'{"row":"call","id":"a"}\n'
    (tmp_path / "journal").write_bytes(whole + b'{"row":"call","i')
    journal = Journal(tmp_path / "journal")
    assert [row["id"] for _, row in journal.open()] == ["a"]
    assert asyncio.run(journal.write({"row": "lost"})) == [len(whole)]
    journal.close()
    assert (tmp_path / "journal").read_bytes() == whole + b'{"row":"lost"}\n'


@pytest.mark.parametrize("line", [b"{cut}", b"[]", b"7", b'{"row":7}', b'{"id":"a"}'])
def test_a_line_that_is_no_row_is_named_by_its_number(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b'{"row":"open"}\n' + line + b"\n")
    with pytest.raises(InputError, match=r"journal:2: not a row of a journal"):
        list(Journal(tmp_path / "journal").open())


LOST = {
    "the last rows": (lambda content: content[: content.index(b"\n") + 1], "are gone"),
    "a part of the last row": (lambda content: content[:-5], "are gone"),
    "all rows": (lambda content: b"", "are gone"),
    "a bit": (lambda content: content.replace(b'"b"', b'"c"'), "not those that were written"),
    "a row between": (lambda content: b"".join(content.splitlines(keepends=True)[::2]), "are gone"),
}


@pytest.mark.parametrize("what", LOST)
def test_a_journal_that_lost_something_is_refused_and_stays_as_it_is(what: str, tmp_path: Path) -> None:
    """Cut at a row's end it would read as a shorter journal, and the missing rows would be paid for again."""
    path = tmp_path / "journal"
    journal = opened(path)
    asyncio.run(journal.write({"row": "a"}, {"row": "b"}, {"row": "d"}))
    journal.close()
    alter, why = LOST[what]
    path.write_bytes(alter(path.read_bytes()))
    left = path.read_bytes()
    with pytest.raises(InputError, match=f"journal: is damaged: .*{why}.*nothing is sent"):
        list(Journal(path).open())
    assert path.read_bytes() == left


def test_rows_written_during_a_lazy_sync_are_synced_too_and_its_failure_is_told(tmp_path: Path) -> None:
    async def play() -> None:
        synced: list[int] = []
        full = threading.Event()

        def sync(descriptor: int) -> None:
            if full.is_set():
                raise OSError(errno.ENOSPC, "No space left on device")
            synced.append(os.fstat(descriptor).st_size)
            loop.call_soon_threadsafe(during.set)
            release.wait()

        loop, during, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
        journal = Journal(tmp_path / "journal.jsonl", sync=sync, lazy=0.001)
        assert not list(journal.open())
        await journal.write({"row": "a"})
        await during.wait()
        await journal.write({"row": "b"})
        size = journal.path.stat().st_size
        release.set()
        while synced[-1] != size:
            await asyncio.sleep(0.001)
        full.set()
        with pytest.raises(EnvironmentFault, match="cannot write"):
            while True:
                await journal.write({"row": "c"})
                await asyncio.sleep(0.001)
        journal.close()

    asyncio.run(play())
