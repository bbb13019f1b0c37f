"""HTTP calls and responses as the endpoints see them, independent of the socket."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message as HttpHeaders
from pathlib import Path
from typing import Any, BinaryIO, Literal

from r2v.emulator.batches.downloads import lines_of, pieces
from r2v.emulator.batches.request_results import ResultRow
from r2v.emulator.bodies import ApiError
from r2v.emulator.server_state import ServerState
from r2v.storage.files import replacing

_PIECE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Response:
    """An answer. `end` is the fate of the connection: "" keeps it, reset closes it at once, silence after a pause."""

    status: int = 200
    body: bytes = b""
    chunks: Iterable[bytes] | None = None
    """Streamed chunks in place of a body; an iterator that raises ConnectionDropped cuts the connection."""
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    end: Literal["", "reset", "silence"] = ""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One HTTP request."""

    provider: str
    route: str
    method: str
    path: str
    query: Mapping[str, str]
    headers: HttpHeaders
    body: BinaryIO

    @property
    def size(self) -> int:
        """Return the size of the body in bytes."""
        here = self.body.tell()
        size = self.body.seek(0, os.SEEK_END)
        self.body.seek(here)
        return size

    def json(self) -> dict[str, Any]:
        """Return the body as an object. Raises ApiError."""
        try:
            parsed = json.loads(self.body.read() or b"{}")
        except ValueError as error:
            raise ApiError(400, f"We could not parse the JSON body of your request: {error}") from error
        if not isinstance(parsed, dict):
            raise ApiError(400, "The body must be a JSON object")
        return parsed

    def form(self, into: Path) -> tuple[dict[str, str], int]:
        """Write a multipart form's file to `into`; return its fields, with the file's name as `filename`, and the
        file's size in bytes. Raises ApiError."""
        _, _, boundary = self.headers.get("Content-Type", "").partition("boundary=")
        fields, size = {}, -1
        data = _view(self.body)
        for head, start, end in _parts(data, b"--" + boundary.strip('"').encode()):
            name = _option(head, "name")
            if "filename=" not in head:
                fields[name] = bytes(data[start:end]).decode()
                continue
            fields["filename"], size = _option(head, "filename"), end - start
            with replacing(into) as file:
                for at in range(start, end, _PIECE):
                    file.write(data[at : min(at + _PIECE, end)])
        if size < 0 or "purpose" not in fields:
            raise ApiError(400, "file and purpose are required")
        return fields, size

    @property
    def limit(self) -> int:
        """Return the page size of a listing, 1 to 1000. Raises ApiError."""
        text = self.query.get("limit", "20")
        if not text.isdecimal() or not 1 <= int(text) <= 1000:
            raise ApiError(400, f"limit: {text} is not a whole number from 1 to 1000")
        return int(text)

    def commit(self, state: ServerState, done: Response) -> Response:
        """Return the answer to a completed operation, or a fault that loses it on its way."""
        faults = state.injector.draw("commit", self.provider, self.route)
        if "commit_then_reset" in faults:
            return Response(end="reset")
        if "commit_then_silence" in faults:
            return Response(end="silence")
        for status, message in ((500, "Internal server error"), (529, "Overloaded")):
            if f"commit_then_{status}" in faults:
                return error_response(ApiError(status, message), self.provider)
        return done

    def download(self, state: ServerState, rows: Callable[[], Iterable[ResultRow]]) -> Response:
        """Return rows as a streamed result file, with the download faults that it meets."""
        faults = state.injector.draw("download", self.provider, self.route)
        lines = lines_of(rows, faults)
        if "slow_trickle" in faults:
            lines = pieces(lines, size=state.timing.trickle_bytes, pause=lambda: state.pause(state.timing.trickle))
        else:
            lines = pieces(lines, size=_PIECE, pause=lambda: None)
        return Response(chunks=lines, content_type="application/binary")


def as_json(obj: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return an object as an answer."""
    return Response(status=status, body=json.dumps(obj, ensure_ascii=False).encode(), headers=headers or {})


def error_response(error: ApiError, provider: str) -> Response:
    """Return an error as an answer in the provider's format."""
    return as_json(error.body(provider), status=error.status, headers=error.headers)


def file_pieces(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes in pieces."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _view(body: BinaryIO) -> bytes | mmap.mmap:
    """Return the whole body for searching, memory-mapped if it is a file."""
    try:
        return mmap.mmap(body.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return body.read()


def _parts(data: bytes | mmap.mmap, boundary: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield the parts of a multipart body as (header text, start, end) with the content's offsets."""
    at = data.find(boundary)
    while at >= 0:
        start = data.find(b"\r\n\r\n", at)
        following = data.find(b"\r\n" + boundary, at + 1)
        if start < 0 or following < 0:
            return
        yield bytes(data[at + len(boundary) : start]).decode(), start + 4, following
        at = following + 2


def _option(head: str, name: str) -> str:
    _, _, rest = head.partition(f'{name}="')
    return rest.partition('"')[0]
