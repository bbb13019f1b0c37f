"""Wave engine: runs thousands of conversations concurrently and batches their model calls.

A conversation is an `async def` that awaits models and worlds. The engine queues the requests to each model and has
its backend answer a whole wave of them at once. There is no barrier: a wave is sent when

- it is full (`Backend.max_batch`),
- its oldest request has waited for `max_age`, or for `max_age + patience` if it goes to a local backend and is less
  than a quarter full (a pass through a model costs nearly the same for one request as for many), or
- every conversation waits for a model, so that no further request can arrive,

and a conversation continues as soon as its answer arrives. A local backend answers one wave at a time; a remote one
(`Remote`: a provider's batch API) has many in flight for hours. Worlds are stepped in worker threads, never on the
event loop. With keyed draws and a backend that answers each request independently, the composition of waves changes no
result.

    waves = Waves(workers=2)
    slm = waves.model(backend)
    episodes = waves.run(lambda task=task: play(task, slm) for task in tasks)

In a running event loop, `await slm.reply(request)` works too: threads and connections are opened for each request, or
once for all requests inside `async with waves.open():`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from r2v.event_loop import run_async
from r2v.llm.answer_cache import AnswerCache, chat_cache_key
from r2v.llm.futures import call_in_thread, fail_waiting, finish_in_thread, forward_result
from r2v.llm.types import Backend, ChatModel, Preparing, Remote, Reply, Request

Q = TypeVar("Q")
A = TypeVar("A")
R = TypeVar("R")

_MODEL_THREADS = 32
"""Most backends that answer at the same time; threads are started on demand."""


class Clock(Protocol):
    """Time source of the engine: an event loop, or a virtual loop in tests."""

    def time(self) -> float:
        """Return monotonic seconds."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Call `callback` once, `delay` seconds from now."""
        ...


@dataclass(frozen=True)
class _Model:
    """A chat model whose requests go through the engine."""

    ask: Callable[[Request], Coroutine[Any, Any, Reply]]

    async def reply(self, request: Request) -> Reply:
        return await self.ask(request)


@dataclass
class WaveCounts:
    """Waves sent to one backend, requests in them, and answers taken from the cache."""

    waves: int = 0
    requests: int = 0
    cached: int = 0


@dataclass
class RequestQueue(Generic[Q, A]):
    """Pending requests of one backend, which is local (one wave at a time) or remote (many waves in flight). Requests
    to a `Preparing` backend are prepared in a separate thread before they are queued."""

    backend: Backend[Q, A] | None
    remote: Remote[Q, A] | None
    max_batch: int
    max_age: float
    patience: float
    """Extra wait (seconds) of a wave that is less than a quarter full."""
    cache: AnswerCache | None
    cache_key: Callable[[Q], Hashable] | None
    prepare: Callable[[Q], Q] | None
    """`Preparing.prepare` of the backend; None if it has none."""
    counts: WaveCounts = field(default_factory=WaveCounts)
    pending: list[tuple[Q, asyncio.Future[A], float]] = field(default_factory=list)
    """(request, future of its answer, time on the clock when it is due)"""
    busy: bool = False

    @classmethod
    def of(
        cls,
        backend: Backend[Q, A] | Remote[Q, A],
        cache: AnswerCache | None,
        cache_key: Callable[[Q], Hashable] | None,
        *,
        max_age: float,
        patience: float,
    ) -> RequestQueue[Q, A]:
        """Return the queue of a backend. A remote one brings its own `max_age` and has no patience."""
        remote = backend if isinstance(backend, Remote) else None
        return cls(
            backend=None if isinstance(backend, Remote) else backend,
            remote=remote,
            max_batch=backend.max_batch,
            max_age=max_age if remote is None else remote.max_age,
            patience=patience if remote is None else 0.0,
            cache=cache,
            cache_key=cache_key,
            prepare=backend.prepare if remote is None and isinstance(backend, Preparing) else None,
        )

    def is_due(self, now: float) -> bool:
        """True if the oldest request has waited long enough."""
        narrow = 4 * len(self.pending) < self.max_batch
        return now >= self.pending[0][2] + (self.patience if narrow else 0.0)

    def delays(self, now: float) -> set[float]:
        """Return the delays (seconds from now) after which to check `is_due`."""
        return {self.pending[0][2] - now, self.pending[0][2] + self.patience - now}

    def take(self) -> list[tuple[Q, asyncio.Future[A], float]]:
        """Remove and return the next wave."""
        wave, self.pending = self.pending[: self.max_batch], self.pending[self.max_batch :]
        self.counts.waves += 1
        self.counts.requests += len(wave)
        return wave


class _EngineResources:
    """Threads and entered remotes of an engine; `worlds`, `encoder` and `models` exist while it is held.

    The first holder opens them and the last closes them. A run holds them for its length, a single request in the
    user's own event loop until it is answered.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._holders = 0
        self._is_open = False

    @asynccontextmanager
    async def hold(self, queues: Sequence[RequestQueue[Any, Any]]) -> AsyncIterator[None]:
        """Open the threads, and the remotes of these queues, if not open yet. Raise RuntimeError while another event
        loop holds them."""
        self._bind()
        self._holders += 1  # before the lock: a closing holder checks again, and a cancelled wait is undone below
        try:
            async with self._lock:
                await self._open(queues)
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                async with self._lock:
                    if not self._holders and self._is_open:
                        await self._close()

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._holders and not self._is_open:
            self._loop, self._lock = loop, asyncio.Lock()
        elif loop is not self._loop:
            raise RuntimeError("a wave engine serves one event loop at a time; create one Waves for each loop")

    async def _open(self, queues: Sequence[RequestQueue[Any, Any]]) -> None:
        if not self._is_open:
            self.worlds = ThreadPoolExecutor(self._workers)
            self.encoder = ThreadPoolExecutor(1)  # tokenizers are not thread-safe
            self.models = ThreadPoolExecutor(max(_MODEL_THREADS, len(queues)))
            self._remotes, self._entered = AsyncExitStack(), set[int]()
            self._is_open = True
        for queue in queues:
            if queue.remote is not None and id(queue) not in self._entered:
                await self._remotes.enter_async_context(queue.remote)
                self._entered.add(id(queue))

    async def _close(self) -> None:
        try:
            await self._remotes.aclose()
        finally:
            self._is_open = False
            for threads in (self.models, self.encoder, self.worlds):
                threads.shutdown()


class Waves:
    """Wave engine. One instance serves any number of `run` calls, one at a time, and single requests in the user's own
    event loop. `clock` defaults to the running event loop."""

    def __init__(
        self,
        *,
        workers: int = 2,
        max_conversations: int = 64,
        max_age: float = 0.02,
        patience: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self._width, self._max_age, self._patience = max_conversations, max_age, patience
        self._injected_clock = clock
        self._queues: list[RequestQueue[Any, Any]] = []
        self._acting = 0
        self._in_world = 0
        self._failed = False
        self._resources = _EngineResources(workers)
        self._tasks: set[asyncio.Task[Any]] = set()

    def model(
        self, backend: Backend[Request, Reply] | Remote[Request, Reply], cache: AnswerCache | None = None
    ) -> ChatModel:
        """Return a chat model whose calls are batched by this engine; `cache` keeps its replies."""
        return _Model(self.batched(backend, cache, chat_cache_key))

    def batched(
        self,
        backend: Backend[Q, A] | Remote[Q, A],
        cache: AnswerCache | None = None,
        cache_key: Callable[[Q], Hashable] | None = None,
    ) -> Callable[[Q], Coroutine[Any, Any, A]]:
        """Return an async function that sends requests to the backend in waves. `cache` keeps the answers, each under
        the `cache_key` of its request."""
        queue = RequestQueue.of(backend, cache, cache_key, max_age=self._max_age, patience=self._patience)
        self._queues.append(queue)

        async def ask(request: Q) -> A:
            return await self._ask(queue, request)

        return ask

    @property
    def width(self) -> int:
        """Largest number of concurrent conversations."""
        return self._width

    @property
    def is_patient(self) -> bool:
        """True if waves less than a quarter full wait longer than `max_age`."""
        return self._patience > 0

    @property
    def counts(self) -> list[WaveCounts]:
        """Wave counts of each backend, in the order of the calls of `model` and `batched`."""
        return [queue.counts for queue in self._queues]

    def open(self) -> AbstractAsyncContextManager[None]:
        """Return a context that keeps threads and remotes open in the running event loop for the requests inside."""
        return self._resources.hold(())

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def _clock(self) -> Clock:
        return self._injected_clock or self._loop

    async def world(self, call: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Return `call(*args, **kwargs)` of a world, run in a worker thread. If the conversation is cancelled, wait
        until the running call has ended."""
        async with self.open():
            return await self._in_thread(call_in_thread, partial(call, *args, **kwargs), self._resources.worlds)

    async def close(self, call: Callable[[], R]) -> R:
        """Return `call()`, which closes a world, run in a worker thread even if the conversation is cancelled."""
        async with self.open():
            return await self._in_thread(finish_in_thread, call, self._resources.worlds)

    async def _in_thread(
        self, run: Callable[..., Coroutine[Any, Any, R]], call: Callable[[], R], threads: Executor
    ) -> R:
        self._acting -= 1
        self._in_world += 1
        self._pump_soon()
        try:
            return await run(threads, call)
        finally:
            self._in_world -= 1
            self._acting += 1

    def run(
        self,
        conversations: Iterable[Callable[[], Coroutine[Any, Any, R]]],
        on_done: Callable[[int, R], None] | None = None,
    ) -> list[R]:
        """Run all conversations and return their results in input order. `on_done(index, result)` is called on the
        event loop as each one ends. The first exception cancels the rest and is raised."""
        return run_async(self.play(conversations, on_done))

    async def play(
        self,
        conversations: Iterable[Callable[[], Coroutine[Any, Any, R]]],
        on_done: Callable[[int, R], None] | None = None,
    ) -> list[R]:
        """Run all conversations as `run` does, in the running event loop."""
        waiting = enumerate(conversations)
        results: dict[int, R] = {}

        async def converse() -> None:
            for index, make in waiting:
                self._acting += 1
                try:
                    results[index] = await make()
                except BaseException:
                    self._failed = True
                    raise
                finally:
                    self._acting -= 1
                    self._pump_soon()
                if on_done is not None:
                    on_done(index, results[index])

        try:
            async with self._resources.hold(self._queues):
                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(self._width):
                            group.create_task(converse())
                finally:
                    self._drop_pending()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed.exceptions[0].__cause__
        return [results[index] for index in range(len(results))]

    def _drop_pending(self) -> None:
        self._failed = False
        for task in self._tasks:
            task.cancel()
        for queue in self._queues:
            for _, future, _ in queue.pending:
                future.cancel()
            queue.pending.clear()
            queue.busy = False

    async def _ask(self, queue: RequestQueue[Q, A], request: Q) -> A:
        async with self._resources.hold((queue,)):
            return await self._answer(queue, request)

    async def _answer(self, queue: RequestQueue[Q, A], request: Q) -> A:
        cache = queue.cache
        key = None if cache is None or queue.cache_key is None else queue.cache_key(request)
        if cache is None or key is None:
            return await self._enqueue(queue, request)
        cached = cache.get(key)
        if cached is None:
            future: asyncio.Future[A] = self._loop.create_future()
            cache[key] = future
            try:
                answer = await self._enqueue(queue, request)
            except BaseException:
                cache.pop(key, None)
                future.cancel()
                raise
            cache[key] = answer
            future.set_result(answer)
            return answer
        queue.counts.cached += 1
        if not isinstance(cached, asyncio.Future):
            return cached  # type: ignore[no-any-return]
        return await self.wait(cached)

    async def _enqueue(self, queue: RequestQueue[Q, A], request: Q) -> A:
        if queue.prepare is not None:
            request = await self._in_thread(call_in_thread, partial(queue.prepare, request), self._resources.encoder)
        future: asyncio.Future[A] = self._loop.create_future()
        queue.pending.append((request, future, self._clock.time() + queue.max_age))
        if len(queue.pending) == 1:
            self._pump_when_due(queue)
        try:
            return await self.wait(future)
        except asyncio.CancelledError:
            if not self._failed:  # after a failure `_drop_pending` clears the whole queue
                queue.pending = [waiting for waiting in queue.pending if waiting[1] is not future]
            raise

    async def wait(self, future: asyncio.Future[A]) -> A:
        """Return the future's result, and count the conversation as waiting meanwhile: for a model or a free site."""
        self._acting -= 1
        self._pump_soon()
        try:
            return await future
        finally:
            self._acting += 1

    def _pump_soon(self) -> None:
        self._loop.call_soon(self._pump)

    def _pump_when_due(self, queue: RequestQueue[Q, A]) -> None:
        for delay in queue.delays(self._clock.time()):
            self._clock.call_later(delay, self._pump)

    def _pump(self) -> None:
        if self._failed:  # the conversations are being cancelled: their requests must not be paid for
            return
        idle = self._acting <= 0 and self._in_world == 0
        for queue in self._queues:
            if queue.busy or not queue.pending:
                continue
            due = queue.is_due(self._clock.time())
            if not (idle or due or len(queue.pending) >= queue.max_batch):
                continue
            if queue.remote is not None:
                self._send_remote(queue, queue.remote)
            elif queue.backend is not None:
                queue.busy = True
                task = self._loop.create_task(self._send(queue, queue.backend))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _send_remote(self, queue: RequestQueue[Q, A], remote: Remote[Q, A]) -> None:
        wave = queue.take()
        try:
            for (_, future, _), answer in zip(wave, remote.send([request for request, _, _ in wave]), strict=True):
                answer.add_done_callback(partial(forward_result, future))
        except Exception as error:  # raised in every conversation that waits for this wave
            fail_waiting([future for _, future, _ in wave], error)
        if queue.pending:
            self._pump_when_due(queue)
            self._pump_soon()

    async def _send(self, queue: RequestQueue[Q, A], backend: Backend[Q, A]) -> None:
        wave = queue.take()
        try:
            answers: Sequence[A] = await self._loop.run_in_executor(
                self._resources.models, backend.answer, [request for request, _, _ in wave]
            )
            for (_, future, _), answer in zip(wave, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        except Exception as error:  # raised in every conversation that waits for this wave
            fail_waiting([future for _, future, _ in wave], error)
        finally:
            queue.busy = False
            if queue.pending:
                self._pump_when_due(queue)
            self._pump_soon()
