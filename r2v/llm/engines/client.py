"""Client of an engine's servers: retries requests over server restarts and loads LoRA adapters on demand.

    client = EngineClient(servers, adapter)
    async with client:
        answer = await client.ask(client.server_index(seed, task), "/v1/completions", body)

A dead server is restarted (`r2v.llm.engines.servers`) and its unanswered requests are sent again. A request that the
server refuses raises `Unanswered`; an unavailable engine raises EnvironmentFault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx2

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.engines.connection import Connection
from r2v.llm.engines.release import BASE_NAME
from r2v.llm.engines.servers import EngineServer, ExternalServer
from r2v.llm.engines.wire import (
    COMPLETIONS,
    NotKeyed,
    Shortened,
    completion_body,
    read_completion,
    reason_of,
)
from r2v.llm.local.decode import Draw, Drawn
from r2v.llm.providers.remote import Unanswered
from r2v.randomness import digest

_ATTEMPTS = 6
_IN_FLIGHT = 256
"""Most requests open at an HTTP server: a process has a limited number of sockets, and the server queues anyway."""
_ANSWER_SECONDS = 900.0
"""Request timeout: a completion may wait in the queue of a loaded server for minutes."""

_TRANSPORT_ERRORS = (httpx2.TransportError, OSError)

Q = TypeVar("Q")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A LoRA adapter: a name derived from its content, and the folder that servers load it from."""

    name: str
    folder: Path


class EngineClient:
    """Connections, encoder thread and running tasks of a `Remote` behind an engine, open for one run."""

    def __init__(self, servers: Sequence[EngineServer], adapter: Adapter | None) -> None:
        self.servers, self.adapter = servers, adapter
        self.model = BASE_NAME if adapter is None else adapter.name
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> EngineClient:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=_IN_FLIGHT)
        self._client = httpx2.AsyncClient(timeout=_ANSWER_SECONDS, limits=limits, trust_env=False)
        self._encoder = ThreadPoolExecutor(1)
        self._slots = asyncio.Semaphore(_IN_FLIGHT * len(self.servers))
        self._connections: dict[Path, Connection] = {}
        self._loading = asyncio.Lock()
        await asyncio.gather(*(server.ready() for server in self.servers))
        return self

    async def __aexit__(self, *error: Any) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        await self._client.aclose()
        self._encoder.shutdown(wait=False, cancel_futures=True)

    def start(self, replies: Iterable[Coroutine[Any, Any, T]]) -> Sequence[asyncio.Task[T]]:
        """Return one task per coroutine, in order; tasks still running when the client closes are cancelled."""
        tasks = [asyncio.get_running_loop().create_task(reply) for reply in replies]
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return tasks

    async def encoded(self, encode: Callable[..., T], *parts: Any) -> T:
        """Return `encode(*parts)`, computed in the encoder thread so that the event loop stays free."""
        return await asyncio.get_running_loop().run_in_executor(self._encoder, encode, *parts)

    def server_index(self, *parts: Any) -> int:
        """Return the server for a conversation: always the same one, whose prefix cache holds the earlier turns."""
        return int.from_bytes(digest(*parts)[:4], "big") % len(self.servers)

    async def ask(self, index: int, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON answer of server `index`. Raises Unanswered if it refuses the request, EnvironmentFault if it
        gives no answer, InputError for an adapter that it cannot load."""
        server = self.servers[index]
        for _ in range(_ATTEMPTS):
            life = server.lives
            try:
                status, content = await self._post(server, path, body)
            except _TRANSPORT_ERRORS:
                await server.recover(life)
                continue
            if status == 200:
                server.answered()
                return content
            if status == 404 and self.adapter is not None:
                await self._load(server, self.adapter)
            elif status in (400, 413, 422):
                raise Unanswered(f"policy.engine: {reason_of(status, content)}", final=True, outcome="overflowed")
            elif status < 500 and status != 429:
                raise EnvironmentFault(f"policy.engine={server.url}: {reason_of(status, content)}")
            else:
                await server.recover(life)
        raise EnvironmentFault(f"policy.engine={server.url}: a request got no answer in {_ATTEMPTS} attempts")

    async def complete(self, index: int, prompt: Sequence[int], draw: Draw, end_ids: frozenset[int]) -> Drawn:
        """Return one completion. Raises as `ask`, and Unanswered for a reply shorter than requested."""
        url = self.servers[index].url
        if isinstance(self.servers[index], ExternalServer):
            draw = replace(draw, logprobs=True)  # they alone prove that the server draws by R2V's processor
        answer = await self.ask(index, COMPLETIONS, completion_body(self.model, prompt, draw, end_ids))
        try:
            return read_completion(answer, draw, end_ids)
        except Shortened as error:
            raise Unanswered(
                f"policy.engine: {error}: prompt and reply do not fit", final=True, outcome="overflowed"
            ) from None
        except NotKeyed as error:
            raise EnvironmentFault(f"policy.engine={url}: {error}; start it with `r2v engine serve`") from None
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EnvironmentFault(f"policy.engine={url}: not a completion of vLLM ({error!r})") from None

    async def unload(self, index: int, adapter: Adapter) -> None:
        """Unload an adapter that is no longer needed; an error answer or a dead server is ignored."""
        with suppress(*_TRANSPORT_ERRORS):  # a dead server holds no adapter
            await self._post(self.servers[index], "/v1/unload_lora_adapter", {"lora_name": adapter.name})

    async def _post(self, server: EngineServer, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and content of an answer; the content is a text if the status is not 200."""
        if server.socket is not None:
            connection = self._connections.setdefault(server.socket, Connection(server.socket))
            return await connection.post(path, body)
        headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        async with self._slots:
            answer = await self._client.post(f"{server.url}{path}", json=body, headers=headers)
        return answer.status_code, answer.json() if answer.status_code == 200 else answer.text

    async def _load(self, server: EngineServer, adapter: Adapter) -> None:
        """Load the adapter into a server, one request at a time; vLLM answers "already been loaded" to the others."""
        body = {"lora_name": adapter.name, "lora_path": str(adapter.folder)}
        async with self._loading:
            try:
                status, content = await self._post(server, "/v1/load_lora_adapter", body)
            except _TRANSPORT_ERRORS:
                return  # the retried request detects the dead server and waits for its restart
        if status >= 400 and "already been loaded" not in content:
            raise InputError(
                f"{adapter.folder}: the engine cannot load this adapter ({reason_of(status, content)}); the server "
                "must be able to read this folder, and must serve the same base model and LoRA rank"
            )


@dataclass
class ServedModel(Generic[Q, T]):
    """A `Remote[Q, T]` (see `r2v.llm.types`) whose requests are all sent at once, each answered by `reply`."""

    client: EngineClient
    reply: Callable[[Q], Coroutine[Any, Any, T]]
    max_batch: int = 100_000
    max_age: float = 0.0

    async def __aenter__(self) -> object:
        return await self.client.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self.client.__aexit__(*error)

    def send(self, requests: Sequence[Q]) -> Sequence[asyncio.Future[T]]:
        """Return one future answer per request, in order."""
        return self.client.start(self.reply(request) for request in requests)
