"""Compression: JSON Lines that are done, packed by zstd (RFC 8878) where a path ends in `.zst`.

    with packed(path, file) as out: out.write(b"{...}\\n")
    for line in lines_of(path): ...

Pages repeat themselves, so episodes take an eighth of their size. A file that is done is packed whole; one that grows
stays plain, because mending a torn end needs lines. What is hashed is the text inside, so a compressor's version
changes no identity. Reading streams, in bounded memory: a packed file may come from a stranger.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from r2v.errors import InputError

LINES = (".jsonl", ".jsonl.zst")
"""How the names of files of JSON Lines end."""

_PACKED = ".zst"
_LEVEL, _WINDOW = 3, 24
"""A window of 2^24 bytes finds what a page has in common with those of many episodes before."""
_LARGEST_WINDOW = 1 << 27
_CHUNK = 1 << 7
"""Bytes unpacked at once: at worst, each four become a block of 128 KiB."""
_RATIO, _ALLOWANCE = 1000, 64 << 20
"""A packed file becomes at most so many times its size, and so many bytes more."""
_LONGEST_LINE = 64 << 20


class Writer(Protocol):
    """Takes bytes."""

    def write(self, data: bytes, /) -> int:
        """Write all of them."""
        ...


@contextmanager
def packed(path: Path, file: BinaryIO) -> Iterator[Writer]:
    """What to write a file's text to: the file itself, or what packs it where `path` says so."""
    if path.suffix != _PACKED:
        yield file
        return
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, window_log=_WINDOW, enable_ldm=True, write_checksum=True, write_content_size=False
    )
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(file, closefd=False) as out:
        yield out


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file with their newlines, streaming. Raises FileNotFoundError, and InputError for a packed file
    that is cut, damaged, followed by something else, or larger than any that is made."""
    with path.open("rb") as file:
        if path.suffix != _PACKED:
            yield from file
            return
        rest = b""
        for text in _unpacked(path, file):
            *lines, rest = (rest + text).split(b"\n") if b"\n" in text else (rest + text,)
            for line in lines:
                yield line + b"\n"
            if len(rest) > _LONGEST_LINE:
                raise InputError(f"{path}: holds a line of more than {_LONGEST_LINE} bytes; R2V writes none")
        if rest:
            yield rest


def _unpacked(path: Path, file: BinaryIO) -> Iterator[bytes]:
    import zstandard

    decoder = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
    most = _RATIO * path.stat().st_size + _ALLOWANCE
    while chunk := file.read(_CHUNK):
        if decoder.eof:
            raise _damaged(path, "something follows its end")
        try:
            text = decoder.decompress(chunk)
        except zstandard.ZstdError as error:
            raise _damaged(path, str(error)) from None
        most -= len(text)
        if most < 0:
            raise InputError(f"{path}: becomes more than {_RATIO} times its size when it is unpacked; R2V writes none")
        yield text
    if not decoder.eof:
        raise _damaged(path, "it is cut short")
    if decoder.unused_data:
        raise _damaged(path, "something follows its end")


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path} is damaged: no whole zstd file ({why}); restore it, or make it again")
