"""A witness distinguishes a file whose writer was killed from a damaged one."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.errors import InputError
from r2v.storage.witness import Witness

LINES = [b"one\n", b"two\n", b"three\n"]


def witnessed(path: Path, lines: list[bytes] = LINES) -> Witness:
    """Make a file whose writer was killed after these lines."""
    path.write_bytes(b"".join(lines))
    witness = Witness(path, "restore it")
    for line in lines:
        witness.see(line)
    witness.write()
    return witness


def read(path: Path) -> None:
    witness = Witness(path, "restore it")
    witness.require_file()
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        witness.see(line)
    witness.require_all()


def test_what_was_written_is_read_and_so_is_what_was_written_after_the_last_sync(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    read(path)
    witnessed(path)
    read(path)
    path.write_bytes(b"".join([*LINES, b"four\n"]))
    read(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"one\ntwo\nthrew\n", "its first 14 bytes are not those that were written"),
        (b"one\ntwo\nthree \nfour\n", "its first 14 bytes"),
        (b"two\none\nthree\n", "its first 14 bytes"),
        (b"one\ntwo\n", "6 of its 14 bytes are gone"),
        (b"", "14 of its 14 bytes are gone"),
        (None, "it is gone, and 14 bytes had been written"),
    ],
)
def test_damage_is_refused_with_the_remedy(content: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    witnessed(path)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=rf"journal: is damaged: {says}.*; restore it"):
        read(path)


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(InputError, match="is not a file; restore it"):
        read(tmp_path / "journal")


def test_a_longer_file_leaves_no_rest_of_the_witness_before(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    witness = witnessed(path)
    sizes = set()
    for _ in range(300):
        path.write_bytes(path.read_bytes() + b"x" * 40 + b"\n")
        witness.see(b"x" * 40 + b"\n")
        witness.write()
        sizes.add(witness.path.stat().st_size)
    read(path)
    assert sizes == {160}


@pytest.mark.parametrize("position", range(0, 160, 7))
def test_a_flipped_bit_of_the_witness_itself_accuses_nobody(
    position: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal"
    witness = witnessed(path)
    content = bytearray(witness.path.read_bytes())
    content[position] ^= 1
    witness.path.write_bytes(content)
    read(path)
    assert "witness damaged, making it again" in caplog.text
