"""Served: the policy behind a serving engine, as a `Remote`: thousands of requests out at once.

    served = Served(servers, adapter, encode=encode, end_ids=ends, replies=TokenReplies(tokenizer, "slm", price))
    slm = waves.model(served)

Prompts are encoded in a thread beside the event loop. A conversation stays with one server, whose cache holds its
prefix. A server that dies is started again (`r2v.llm.engines.servers`) and what it owed is asked again: draws are
keyed, so the answers are those it would have given, and no conversation notices. A prompt that the server refuses, and
a reply that it cut short, is a refused request (`Unanswered`); an engine that cannot be had is an EnvironmentFault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.engines.release import BASE_NAME
from r2v.llm.engines.servers import EngineServer
from r2v.llm.engines.wire import COMPLETIONS, NotKeyed, Shortened, completion_body, read_completion, reason_of
from r2v.llm.local.decode import Drawn
from r2v.llm.local.wording import TokenReplies, num_drawn
from r2v.llm.providers.remote import Unanswered
from r2v.llm.types import Message, Reply, Request
from r2v.randomness import digest

_ATTEMPTS = 6
_IN_FLIGHT = 256
"""Completions that wait at one server at a time; it has a queue of its own, and a process only so many sockets."""
_ANSWER_SECONDS = 900.0
_SESSION_PARTS = 2
"""Parts of a key that are the conversation's: seed and task."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Adapters by the name that stands for their content, and the folder that a server reads them from."""

    name: str
    folder: Path


class Served:
    """A `Remote[Request, Reply]` (see `r2v.llm.types`) of the base model, or of it with adapters."""

    max_batch = 100_000
    max_age = 0.0

    def __init__(
        self,
        servers: Sequence[EngineServer],
        adapter: Adapter | None,
        *,
        encode: Callable[[Sequence[Message]], Sequence[int]],
        end_ids: frozenset[int],
        replies: TokenReplies,
    ) -> None:
        self.servers, self.adapter = servers, adapter
        self._model = BASE_NAME if adapter is None else adapter.name
        self._encode, self._end_ids, self._replies = encode, end_ids, replies
        self._tasks: set[asyncio.Task[Reply]] = set()

    async def __aenter__(self) -> Served:
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

    def send(self, requests: Sequence[Request]) -> Sequence[asyncio.Future[Reply]]:
        """One future reply per request, in order."""
        tasks = [asyncio.get_running_loop().create_task(self._reply(request)) for request in requests]
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return tasks

    async def _reply(self, request: Request) -> Reply:
        loop = asyncio.get_running_loop()
        prompt = await loop.run_in_executor(self._encoder, self._encode, request.messages)
        drawn = list(await asyncio.gather(*(self._complete(prompt, request, k) for k in range(num_drawn(request)))))
        return self._replies.reply(len(prompt), drawn * (request.num_samples // len(drawn)))

    async def _complete(self, prompt: Sequence[int], request: Request, k: int) -> Drawn:
        place = int.from_bytes(digest(*request.key[:_SESSION_PARTS])[:4], "big") % len(self.servers)
        server = self.servers[place]
        body = completion_body(self._model, prompt, request, (*request.key, k), self._end_ids)
        async with self._rooms[place]:
            answer = await self._ask(server, body)
        try:
            return read_completion(answer, request.max_tokens, self._end_ids)
        except Shortened as error:
            raise Unanswered(f"policy.engine: {error}: prompt and reply do not fit", final=True) from None
        except NotKeyed as error:
            raise EnvironmentFault(f"policy.engine={server.url}: {error}; start it with `r2v engine serve`") from None
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EnvironmentFault(f"policy.engine={server.url}: not a completion of vLLM ({error!r})") from None

    async def _ask(self, server: EngineServer, body: dict[str, Any]) -> Any:
        for _ in range(_ATTEMPTS):
            life = server.lives
            try:
                answer = await self._post(server, COMPLETIONS, body)
            except httpx2.TransportError:
                await server.recover(life)
                continue
            if answer.status_code == 200:
                server.answered()
                return answer.json()
            if answer.status_code == 404 and self.adapter is not None:
                await self._load(server, self.adapter)
            elif answer.status_code in (400, 413, 422):
                raise Unanswered(f"policy.engine: {reason_of(answer.status_code, answer.text)}", final=True)
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
