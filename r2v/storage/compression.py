"""Compression: finished JSON Lines files, packed by zstd (RFC 8878) if the path ends in `.zst`.

    with packed(path, file) as out: out.write(b"{...}\n")
    for line in lines_of(path): ...
    line_at(path, offset)                   # an offset that places_of yielded with the line

Episodes shrink to an eighth, since pages repeat. A finished file is packed whole; a growing one stays plain, because
mending a torn end needs lines. Hashes cover the text, so the compressor's version changes no identity. A file consists
of frames of a few megabytes, so that one line can be read without all before it. Reading streams in bounded memory,
since a packed file may come from an untrusted source.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from r2v.errors import InputError
from r2v.storage.file_system import steadily

LINES = (".jsonl", ".jsonl.zst")
"""Name endings of JSON Lines files."""

_PACKED = ".zst"
_LEVEL, _WINDOW = 3, 24
"""A window of 2^24 bytes matches a page with those of many earlier episodes."""
_LARGEST_WINDOW = 1 << 27  # bytes; the zstd command's default limit for decompression
_CHUNK = 1 << 7
"""Bytes unpacked at once: at worst, each four become a block of 128 KiB."""
_RATIO, _ALLOWANCE = 1000, 64 << 20
"""Bound of the unpacked size: _RATIO times the packed size plus _ALLOWANCE bytes, against decompression bombs."""
_LONGEST_LINE = 64 << 20  # bytes; a line is held in memory
_FRAME = 4 << 20
"""Bytes of text after which a frame ends."""
_EMPTY = 32
"""Largest size in bytes of a file without lines. Any other frame without text would hold bytes that no hash covers."""
_INNER_BITS = 24
"""Low bits of an offset in a packed file: start of the line within its frame; the high bits: start of the frame."""


class CutShort(InputError):
    """A packed file is truncated. `whole`: bytes of its complete frames."""

    def __init__(self, message: str, whole: int) -> None:
        super().__init__(message)
        self.whole = whole


class Writer(Protocol):
    """Sink of bytes."""

    def write(self, data: bytes, /) -> int:
        """Write all of `data` and return its length."""
        ...


@contextmanager
def packed(path: Path, file: BinaryIO) -> Iterator[Writer]:
    """Yield the writer of a file's text: the file itself, or a compressor in front of it if `path` ends in `.zst`."""
    if path.suffix != _PACKED:
        yield file
        return
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW, enable_ldm=True, write_checksum=True, write_content_size=False
    )
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(file, closefd=False) as out:
        yield _Frames(out)


class _Frames:
    """Writer that starts a new frame after every _FRAME bytes of text."""

    def __init__(self, out: Any) -> None:
        self._out, self._size = out, 0

    def write(self, data: bytes, /) -> int:
        if self._size >= _FRAME:
            self._out.flush(1)  # FLUSH_FRAME
            self._size = 0
        self._size += len(data)
        self._out.write(data)
        return len(data)


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their newlines. Raise FileNotFoundError, and InputError for a packed file that is
    truncated, damaged or larger than R2V writes."""
    return (line for _, line in places_of(path))


def places_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of every line, for `line_at`. Raise as `lines_of` does."""
    with steadily(lambda: path.open("rb")) as file:
        if path.suffix == _PACKED:
            yield from _placed(path, _unpacked(path, file, 0))
            return
        offset = 0
        for line in file:
            yield offset, line
            offset += len(line)


def line_at(path: Path, offset: int) -> bytes:
    """Return the line at an offset. Raise OSError, and ValueError if a packed file has changed."""
    with steadily(lambda: path.open("rb")) as file:
        if path.suffix != _PACKED:
            file.seek(offset)
            return file.readline()
        start, inner = offset >> _INNER_BITS, offset % (1 << _INNER_BITS)
        stat = os.fstat(file.fileno())
        lines, problem = _frame(path, start, (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
        if offset not in lines:
            raise ValueError(problem or f"{path}: no line begins at byte {inner} of the frame at {start}")
        return lines[offset]


@lru_cache(maxsize=4)
def _frame(path: Path, start: int, version: tuple[int, ...]) -> tuple[dict[int, bytes], str]:
    """Return the lines that begin in a frame by their offsets, up to any damage, and the damage. Plays are read in
    about the order of their lines, so the last are kept; `version` of the file tells them from those of another."""
    lines: dict[int, bytes] = {}
    try:
        with path.open("rb") as file:
            for offset, line in _placed(path, _unpacked(path, file, start)):
                if offset >> _INNER_BITS != start:
                    break
                lines[offset] = line
    except InputError as error:
        return lines, str(error)
    return lines, ""


def _placed(path: Path, texts: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of every line of unpacked texts."""
    frame, inner, begin, rest = -1, 0, 0, b""
    for start, text in texts:
        if start != frame:
            frame, inner = start, 0
        *lines, last = text.split(b"\n")
        for line in lines:
            begin = begin if rest else frame << _INNER_BITS | inner
            yield begin, rest + line + b"\n"
            inner += len(line) + 1
            rest = b""
        if last:
            begin = begin if rest else frame << _INNER_BITS | inner
            inner += len(last)
            rest += last
        if len(rest) > _LONGEST_LINE:
            raise InputError(f"{path}: holds a line of more than {_LONGEST_LINE} bytes; R2V writes none")
    if rest:
        yield begin, rest


def _unpacked(path: Path, file: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (start of the frame, text) from the frame at byte `start` on."""
    import zstandard

    packed_by = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    most = _RATIO * path.stat().st_size + _ALLOWANCE
    decoder, position, left, whole, texts = packed_by.decompressobj(), start, b"", False, False
    file.seek(start)
    while chunk := left or file.read(_CHUNK):
        if whole:
            decoder, start, whole, texts = packed_by.decompressobj(), position, False, False
        try:
            text = decoder.decompress(chunk)
        except zstandard.ZstdError as error:
            raise InputError(_damaged(path, str(error))) from None
        whole, left = decoder.eof, decoder.unused_data
        position += len(chunk) - len(left)
        texts = texts or bool(text)
        # A frame without text could hide bytes from the hash.
        if whole and not texts and (start or left or position > _EMPTY):
            raise InputError(_damaged(path, f"a frame without text at byte {start}"))
        most -= len(text)
        if most < 0:
            raise InputError(f"{path}: becomes more than {_RATIO} times its size when it is unpacked; R2V writes none")
        yield start, text
    if not whole:
        raise CutShort(_damaged(path, "it is cut short"), start)


def _damaged(path: Path, why: str) -> str:
    return f"{path} is damaged: no whole zstd file ({why}); restore it, or make it again"
