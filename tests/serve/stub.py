"""A stub provider: it records each request as it came over the wire, and writes the answers of a test."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.config import load
from r2v.serve.server import listening

RESET = object()
"""In an answer: the connection is cut."""
Step = Any
"""Part of an answer: bytes to write, seconds to wait, or RESET."""


@dataclass(kw_only=True)
class Seen:
    """A request as the provider saw it."""

    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        """Return the values of a header."""
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def json(self) -> Any:
        """Return the body, parsed."""
        return json.loads(self.body)


Answer = Callable[[Seen], Sequence[Step]]


def reply(body: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> list[Step]:
    """Return an answer in JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(content)}"]
    return [("\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers)]) + "\r\n\r\n").encode() + content]


def stream(pieces: Sequence[Step], headers: Sequence[tuple[str, str]] = (), *, ends: bool = True) -> list[Step]:
    """Return an answer that streams these pieces, each as a chunk of its own."""
    lines = ["HTTP/1.1 200 OK", "content-type: text/event-stream", "transfer-encoding: chunked"]
    steps: list[Step] = [("\r\n".join([*lines, *(f"{n}: {v}" for n, v in headers)]) + "\r\n\r\n").encode()]
    for piece in pieces:
        steps.append(b"%x\r\n%b\r\n" % (len(piece), piece) if isinstance(piece, bytes) else piece)
    return [*steps, b"0\r\n\r\n"] if ends else [*steps, RESET]


@dataclass(kw_only=True)
class Stub:
    """The provider. `answer` may be replaced between requests."""

    answer: Answer
    seen: list[Seen] = field(default_factory=list)
    closed_early: int = 0
    """Answers whose reader went away."""
    port: int = 0

    @property
    def url(self) -> str:
        """Return the stub's address."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.rstrip("\r\n").split("\r\n")
                headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
                length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
                seen = Seen(target=first.split(" ")[1], headers=headers, body=await reader.readexactly(length))
                self.seen.append(seen)
                for step in self.answer(seen):
                    if step is RESET:
                        writer.transport.abort()
                        return
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                    else:
                        await asyncio.sleep(step)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed_early += not reader.at_eof()
        finally:
            writer.close()


@contextmanager
def in_thread(main: Callable[[Callable[[Any], None], asyncio.Event], Any]) -> Iterator[Any]:
    """Run `main(ready, stop)` in an event loop of its own; yield the argument of `ready`."""
    ready, loop, box = threading.Event(), asyncio.new_event_loop(), []
    stop = asyncio.Event()

    def tell(value: Any) -> None:
        box.append(value)
        ready.set()

    def run() -> None:
        try:
            loop.run_until_complete(main(tell, stop))
        except BaseException as error:
            tell(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        if isinstance(box[0], BaseException):
            raise box[0]
        yield box[0]
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join()
    assert len(box) == 1, box[1:]


@contextmanager
def stub(answer: Answer) -> Iterator[Stub]:
    """Yield a provider that listens while the block runs."""
    provider = Stub(answer=answer)

    async def main(ready: Callable[[Any], None], stop: asyncio.Event) -> None:
        server = await asyncio.start_server(provider.serve, "127.0.0.1", 0, limit=1 << 26)
        provider.port = server.sockets[0].getsockname()[1]
        ready(provider)
        await stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    with in_thread(main) as made:
        yield made


@contextmanager
def served(folder: Path, url: str, *overrides: str, provider: str = "openai", record: bool = True) -> Iterator[Served]:
    """Run R2V's server in front of a provider's URL, at $1 and $4 a million tokens."""
    config = load(
        {
            "teacher": {
                "provider": provider,
                "model_name": "big-1",
                "base_url": f"{url}/v1",
                "usd_in": 1.0,
                "usd_out": 4.0,
                "api_key_env": "STUB_API_KEY",
            },
            "serve": {"port": 0},
        },
        list(overrides),
    )

    async def main(ready: Callable[[Any], None], stop: asyncio.Event) -> None:
        async with listening(config, folder, record=record) as place:
            ready(place)
            await stop.wait()

    with in_thread(main) as place:
        yield Served(url=place.url, key=place.keys_file.read_text().split()[1], folder=place.folder)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server under test."""

    url: str
    key: str
    folder: Path

    @property
    def auth(self) -> dict[str, str]:
        """Return headers with its key."""
        return {"authorization": f"Bearer {self.key}"}
