"""Downloads of result files, with injected faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from r2v.emulator.batches.request_results import ResultRow


class ConnectionDropped(Exception):
    """The connection is cut in the middle of a download."""


def lines_of(rows: Callable[[], Iterable[ResultRow]], faults: frozenset[str]) -> Iterator[bytes]:
    """Yield the lines of a result file with their ends, altered by download faults. `rows` may be called more than
    once. Raises ConnectionDropped to cut the connection."""
    if not faults:
        yield from (row.line + b"\n" for row in rows())
        return
    total = sum(1 for _ in rows())
    end = b"\r\n" if "lines_crlf" in faults else b"\n"
    chosen: Iterable[ResultRow] = reversed(list(rows())) if "lines_reversed" in faults else rows()
    for index, row in enumerate(chosen):
        line = row.line + end
        if index == total // 2 and "lines_cut" in faults:
            return
        if index == total // 2 and "results_dropped" in faults:
            yield line[: len(line) // 2]
            raise ConnectionDropped
        if index == total // 2 and "lines_malformed" in faults:
            line = b'{"custom_id": oops' + end
        if index == total - 1 and "lines_truncated" in faults:
            line = row.line[: len(row.line) // 2]
        yield line
        if "lines_duplicated" in faults:
            yield line


def pieces(lines: Iterable[bytes], *, size: int, pause: Callable[[], None]) -> Iterator[bytes]:
    """Yield the bytes of `lines` in pieces of `size` bytes, with a pause after each."""
    buffered = b""
    try:
        for line in lines:
            buffered += line
            while len(buffered) >= size:
                yield buffered[:size]
                buffered = buffered[size:]
                pause()
    except ConnectionDropped:
        yield buffered
        raise
    yield buffered
