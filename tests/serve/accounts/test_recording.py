"""Recorded sessions: the rest of a killed one is read, and continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.data.interchange.served import recorded_turns
from r2v.errors import InputError
from r2v.serve.accounts.recording import Recorder, session_path


def write(folder: Path, *turns: int) -> Path:
    recorder = Recorder(folder)
    for turn in turns:
        recorder.write("s", {"turn": turn}, b"{}", b"text")
    return session_path(folder, "s")


@pytest.mark.parametrize("lost", [1, 5, 1000])
def test_a_torn_frame_hides_nothing_that_follows(lost: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = write(tmp_path, 1, 2).stat().st_size
    path = write(tmp_path, 3)
    with path.open("r+b") as file:
        file.truncate(max(whole + 1, path.stat().st_size - lost))
    assert [row["turn"] for row in recorded_turns(path)] == [1, 2]
    assert "incomplete last turn omitted" in caplog.text
    write(tmp_path, 4, 5)
    assert [row["turn"] for row in recorded_turns(path)] == [1, 2, 4, 5]


def test_a_file_that_holds_nothing_yet_is_written(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    path.write_bytes(b"")
    assert list(recorded_turns(path)) == []
    write(tmp_path, 2)
    assert [row["turn"] for row in recorded_turns(path)] == [2]


def test_a_damaged_file_is_refused_by_readers_and_grows_on(tmp_path: Path) -> None:
    path = write(tmp_path, 1, 2)
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        list(recorded_turns(path))
    assert write(tmp_path, 3).stat().st_size > len(content)
