"""Server-sent events, the streams of all three formats.

for event in read_events(chunks): ...       # Event(name="message_start", data='{"type": ...}')
write_event({"type": "ping"}, name="ping")  # b'event: ping\\ndata: {"type":"ping"}\\n\\n'
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

DONE = b"data: [DONE]\n\n"
"""End of a stream of Chat Completions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event; `name` is empty for an unnamed one."""

    name: str
    data: str

    @property
    def json(self) -> dict[str, Any] | None:
        """Data as an object; None for `[DONE]` and other data."""
        try:
            value = json.loads(self.data)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


def read_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of a stream in chunks of any size; comments are dropped. A last event without an empty line
    counts, because some servers omit the line."""
    name, data = "", list[str]()
    for line in _lines(chunks):
        if not line:
            if data:
                yield Event(name=name, data="\n".join(data))
            name, data = "", []
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                if data and (event := Event(name=name, data="\n".join(data))).json is not None:
                    yield event  # some servers omit the empty line between events
                    data = []
                data.append(value)
    if data:
        yield Event(name=name, data="\n".join(data))


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")
    if rest:
        yield rest.removesuffix(b"\r").decode(errors="replace")


def write_event(data: Any, *, name: str = "") -> bytes:
    """Return the bytes of one event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode(errors="replace")


def end_of_events(text: bytes | bytearray, start: int = 0, stop: int | None = None) -> int:
    """Return the end of the last whole event in text[start:stop], after its blank line; `start` without one."""
    stop = len(text) if stop is None else stop
    ends = (text.rfind(mark, start, stop) + len(mark) for mark in _BLANK if text.rfind(mark, start, stop) >= 0)
    return max(ends, default=start)


def end_of_event(text: bytes, start: int) -> int:
    """Return the end of the event around text[start], after its blank line; the end of the text without one."""
    ends = (text.find(mark, start) + len(mark) for mark in _BLANK if text.find(mark, start) >= 0)
    return min(ends, default=len(text))


_BLANK = (b"\n\n", b"\n\r\n")
