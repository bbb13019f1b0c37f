"""The client of an engine's servers: requests that outlive a server, and adapters that it is made to know.

    client = EngineClient(servers, adapter)
    async with client:
        answer = await client.ask(place, "/v1/completions", body)

A server that dies is started again (`r2v.llm.engines.servers`) and what it owed is asked again. What it refuses is a
refused request (`Unanswered`); an engine that cannot be had is an EnvironmentFault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx2

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.engines.release import BASE_NAME
from r2v.llm.engines.servers import EngineServer
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
"""Requests that wait at one server at a time; it has a queue of its own, and a process only so many sockets."""
_ANSWER_SECONDS = 900.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Adapters by the name that stands for their content, and the folder that a server reads them from."""

    name: str
    folder: Path


class EngineClient:
    """What a `Remote` behind an engine needs, for the length of a run: its HTTP side, a thread to encode in, and the
    tasks that are under way."""

    def __init__(self, servers: Sequence[EngineServer], adapter: Adapter | None) -> None:
        self.servers, self.adapter = servers, adapter
        self.model = BASE_NAME if adapter is None else adapter.name
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> EngineClient:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=_IN_FLIGHT)
        self._client = httpx2.AsyncClient(timeout=_ANSWER_SECONDS, limits=limits, trust_env=False)
        self._encoder = ThreadPoolExecutor(1)
        self._rooms = [asyncio.Semaphore(_IN_FLIGHT) for _ in self.servers]
        self._loading = asyncio.Lock()
        await asyncio.gather(*(server.ready() for server in self.servers))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()
        self._encoder.shutdown(wait=False, cancel_futures=True)

    def start(self, replies: Iterable[Coroutine[Any, Any, T]]) -> Sequence[asyncio.Task[T]]:
        """Their tasks, in order; those that are under way at the end of the run are cancelled."""
        tasks = [asyncio.get_running_loop().create_task(reply) for reply in replies]
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return tasks

    async def encoded(self, encode: Callable[..., T], *parts: Any) -> T:
        """What `encode` makes of these, in a thread beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._encoder, encode, *parts)

    def place_of(self, *parts: Any) -> int:
        """The server that a conversation stays with, whose cache holds its prefix."""
        return int.from_bytes(digest(*parts)[:4], "big") % len(self.servers)

    async def ask(self, place: int, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer of a server to a request. Raises Unanswered where it refuses it, EnvironmentFault where there
        is no answer to be had, InputError for adapters that it cannot load."""
        async with self._rooms[place]:
            return await self._answer(self.servers[place], path, body)

    async def complete(self, place: int, prompt: Sequence[int], draw: Draw, end_ids: frozenset[int]) -> Drawn:
        """One completion. Raises as `ask`; a reply that the server cut short is refused too."""
        url = self.servers[place].url
        answer = await self.ask(place, COMPLETIONS, completion_body(self.model, prompt, draw, end_ids))
        try:
            return read_completion(answer, draw.max_tokens, end_ids)
        except Shortened as error:
            raise Unanswered(
                f"policy.engine: {error}: prompt and reply do not fit", final=True, outcome="overflowed"
            ) from None
        except NotKeyed as error:
            raise EnvironmentFault(f"policy.engine={url}: {error}; start it with `r2v engine serve`") from None
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EnvironmentFault(f"policy.engine={url}: not a completion of vLLM ({error!r})") from None

    async def forget(self, place: int, adapter: Adapter) -> None:
        """Take adapters from a server that will not be asked for them again; one that has not got them is content."""
        with suppress(httpx2.TransportError):
            await self._post(self.servers[place], "/v1/unload_lora_adapter", {"lora_name": adapter.name})

    async def _answer(self, server: EngineServer, path: str, body: dict[str, Any]) -> Any:
        for _ in range(_ATTEMPTS):
            life = server.lives
            try:
                answer = await self._post(server, path, body)
            except httpx2.TransportError:
                await server.recover(life)
                continue
            if answer.status_code == 200:
                server.answered()
                return answer.json()
            if answer.status_code == 404 and self.adapter is not None:
                await self._load(server, self.adapter)
            elif answer.status_code in (400, 413, 422):
                raise Unanswered(
                    f"policy.engine: {reason_of(answer.status_code, answer.text)}", final=True, outcome="overflowed"
                )
            elif answer.status_code < 500 and answer.status_code != 429:
                raise EnvironmentFault(f"policy.engine={server.url}: {reason_of(answer.status_code, answer.text)}")
            else:
                await server.recover(life)
        raise EnvironmentFault(f"policy.engine={server.url}: a request got no answer in {_ATTEMPTS} attempts")

    async def _post(self, server: EngineServer, path: str, body: dict[str, Any]) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        return await self._client.post(f"{server.url}{path}", json=body, headers=headers)

    async def _load(self, server: EngineServer, adapter: Adapter) -> None:
        """Make the adapters known to a server, once for all who wait for them."""
        body = {"lora_name": adapter.name, "lora_path": str(adapter.folder)}
        async with self._loading:
            try:
                answer = await self._post(server, "/v1/load_lora_adapter", body)
            except httpx2.TransportError:
                return  # the request that needs them finds the server dead, and waits for it
        if answer.status_code >= 400 and "already been loaded" not in answer.text:
            raise InputError(
                f"{adapter.folder}: the engine cannot load these adapters ({reason_of(answer.status_code, answer.text)}"
                "); it has to see this folder, and base and rank must be those that it was started with"
            )
