"""Packed JSON Lines: the same lines, an eighth of the size; cut, damaged and decompression-bomb files are named."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import zstandard

from r2v.errors import InputError
from r2v.randomness import generator
from r2v.storage import compression
from r2v.storage.compression import line_at, lines_of, places_of
from r2v.storage.files import content_sha256, write_lines

LINES = [f'{{"step":{i},"page":"{"row " * (i % 50)}{i * 7919 % 1000}"}}' for i in range(400)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_lines(tmp_path / "a.jsonl.zst", LINES)
    return tmp_path / "a.jsonl.zst"


def test_the_lines_are_those_of_a_plain_file_and_so_is_the_hash(path: Path) -> None:
    plain = path.with_name("a.jsonl")
    assert write_lines(plain, LINES) == len(LINES)
    assert list(lines_of(path)) == list(lines_of(plain)) == [line.encode() + b"\n" for line in LINES]
    assert content_sha256(path) == content_sha256(plain)
    assert 4 * path.stat().st_size < plain.stat().st_size


def test_the_hash_is_of_the_text_and_not_of_what_packed_it(path: Path) -> None:
    before = content_sha256(path)
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(b"".join(lines_of(path))))
    assert content_sha256(path) == before and list(lines_of(path))[3] == LINES[3].encode() + b"\n"


def test_a_file_without_lines_and_a_last_line_without_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    write_lines(path, [])
    assert list(lines_of(path)) == []
    path.write_bytes(zstandard.ZstdCompressor().compress(b"a\nb"))
    assert list(lines_of(path)) == [b"a\n", b"b"]
    with pytest.raises(FileNotFoundError):
        list(lines_of(tmp_path / "gone.jsonl.zst"))


@pytest.mark.parametrize("place", ["before", "after", "alone"])
@pytest.mark.parametrize("frame", [b"\x50\x2a\x4d\x18\x40\0\0\0" + 64 * b"x", zstandard.ZstdCompressor().compress(b"")])
def test_a_frame_without_text_is_refused(path: Path, place: str, frame: bytes) -> None:
    whole = path.read_bytes()
    path.write_bytes({"before": frame + whole, "after": whole + frame, "alone": frame}[place])
    if place == "alone" and len(frame) < 32:
        assert list(lines_of(path)) == [], "R2V writes this for no lines"
        return
    with pytest.raises(InputError, match="a frame without text"):
        list(lines_of(path))


def test_damage_is_named_or_changes_no_line(path: Path) -> None:
    whole, lines, before = path.read_bytes(), list(lines_of(path)), content_sha256(path)
    draw, named = generator("damage"), 0
    for _ in range(60):
        at = draw.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
        try:
            assert list(lines_of(path)) == lines and content_sha256(path) == before
        except InputError as error:
            assert str(error).startswith(f"{path} is damaged: no whole zstd file (") and "\n" not in str(error)
            assert content_sha256(path) != before
            named += 1
    assert named > 50


@pytest.mark.parametrize("keep", [0, 3, 0.5, -1])
def test_a_torn_file_is_named(path: Path, keep: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(InputError, match="cut short"):
        list(lines_of(path))


@pytest.mark.parametrize("more", [b"x", b"x" * 5000, b"{}\n"])
def test_what_follows_the_end_is_named(path: Path, more: bytes) -> None:
    before = content_sha256(path)
    path.write_bytes(path.read_bytes() + more)
    with pytest.raises(InputError, match="is damaged"):
        list(lines_of(path))
    assert content_sha256(path) != before


def test_a_line_is_read_without_the_frames_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_FRAME", 2000)
    for path in (tmp_path / "a.jsonl.zst", tmp_path / "a.jsonl"):
        write_lines(path, LINES)
        places = list(places_of(path))
        assert [line for _, line in places] == [line.encode() + b"\n" for line in LINES]
        assert [line_at(path, place) for place, _ in places] == [line for _, line in places]
        assert len({place for place, _ in places}) == len(LINES)
    packed = tmp_path / "a.jsonl.zst"
    frames = sorted({place >> 24 for place, _ in places_of(packed)})
    assert len(frames) > 20, "some lines each"
    last = max(place for place, _ in places_of(packed))
    packed.write_bytes(b"\0" * frames[-1] + packed.read_bytes()[frames[-1] :])
    assert line_at(packed, last) == LINES[-1].encode() + b"\n"
    for place in (last + 1, 0, frames[-1] << 24 | 1 << 20):
        with pytest.raises(ValueError, match="a.jsonl.zst"):
            line_at(packed, place)


def test_a_line_may_reach_over_frames_that_others_made(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    pack = zstandard.ZstdCompressor().compress
    path.write_bytes(pack(b"a\nbe") + pack(b"gin\n") + pack(b"c"))
    assert list(lines_of(path)) == [b"a\n", b"begin\n", b"c"]
    assert [line_at(path, place) for place, _ in places_of(path)] == [b"a\n", b"begin\n", b"c"]


@pytest.mark.parametrize("unit", [b"\0" * (1 << 20), b"x" * 1023 + b"\n"])
def test_a_bomb_ends_in_one_line_and_little_memory(
    tmp_path: Path, unit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "_ALLOWANCE", 1 << 20)
    monkeypatch.setattr(compression, "_LONGEST_LINE", 1 << 20)
    path = tmp_path / "bomb.jsonl.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as out:
        for _ in range((128 << 20) // len(unit)):
            out.write(unit)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"bomb.jsonl.zst: (becomes more than|holds a line of more than)"):
        for _ in lines_of(path):
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20


def test_a_window_that_takes_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=30, write_content_size=False)
    with path.open("wb") as file:
        packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        file.write(packer.compress(b"{}\n") + packer.flush())
    with pytest.raises(InputError, match="no whole zstd file"):
        list(lines_of(path))
