"""The wave engine: thousands of conversations side by side, every model call part of a batch.

A conversation is an `async def` that awaits models and worlds; it is always waiting for a model, waiting for
its world, or done. The engine collects what waits for the same model and lets its backend answer a whole wave
at once. There is no barrier: a wave leaves when

- it is full (`Backend.max_batch`),
- its oldest request is older than `max_age`, and by `patience` where it goes to a local backend and is less than a
  quarter full (a pass through a model costs nearly the same for one request as for many), or
- no conversation is acting any more, so that waiting longer could add nothing to it,

and a conversation whose answer is there goes on at once. A local backend answers one wave at a time; a remote one
(`Remote`: a provider's batch API) has many of them in flight for hours, each request answered when its result arrives.
Worlds are stepped in worker threads, never on the event loop. With keyed draws and a backend whose answers do not
depend on their company, the composition of waves changes no result.

    waves = Waves(workers=2)
    slm = waves.model(backend)
    episodes = waves.run(lambda task=task: play(task, slm) for task in tasks)

In an event loop that runs already, `await slm.reply(request)` serves too: threads and connections are opened for the
question, or once for all questions inside `async with waves.open():`.
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
from r2v.llm.futures import call_in_thread, fail_waiting, finish_in_thread, forward_result
from r2v.llm.memo import Memo, chat_memo_key
from r2v.llm.types import Backend, ChatModel, Preparing, Remote, Reply, Request

Q = TypeVar("Q")
A = TypeVar("A")
R = TypeVar("R")

_MODEL_THREADS = 32
"""Most backends that answer at the same time. A thread is started when it is needed."""


class Clock(Protocol):
    """Time as the engine needs it; an event loop is one, and so is a test's virtual loop."""

    def time(self) -> float:
        """Seconds, monotonic."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        """Call back once, `delay` seconds from now."""
        ...


@dataclass(frozen=True)
class _Model:
    """A chat backend behind the engine."""

    ask: Callable[[Request], Coroutine[Any, Any, Reply]]

    async def reply(self, request: Request) -> Reply:
        return await self.ask(request)


@dataclass
class WaveCounts:
    """How the engine filled its waves."""

    waves: int = 0
    requests: int = 0
    remembered: int = 0


@dataclass
class Port(Generic[Q, A]):
    """The queue of requests in front of one backend, which answers wave by wave, or is remote and has many waves in
    flight. A backend that prepares its requests (`Preparing`: a model that reads tokens) has that done in a thread
    beside, while it answers others."""

    backend: Backend[Q, A] | None
    remote: Remote[Q, A] | None
    max_batch: int
    max_age: float
    patience: float
    """How much longer (seconds) a wave waits that is less than a quarter full."""
    memo: Memo | None
    memo_key: Callable[[Q], Hashable] | None
    prepare: Callable[[Q], Q] | None
    """Makes a request ready for the backend; None where it takes requests as they are."""
    counts: WaveCounts = field(default_factory=WaveCounts)
    pending: list[tuple[Q, asyncio.Future[A], float]] = field(default_factory=list)
    """(request, where its answer goes, when it is due by the clock)"""
    busy: bool = False

    @classmethod
    def of(
        cls,
        backend: Backend[Q, A] | Remote[Q, A],
        memo: Memo | None,
        memo_key: Callable[[Q], Hashable] | None,
        *,
        max_age: float,
        patience: float,
    ) -> Port[Q, A]:
        """Return the port of a backend. A remote one has an age of its own, and waits for nobody."""
        remote = backend if isinstance(backend, Remote) else None
        return cls(
            backend=None if isinstance(backend, Remote) else backend,
            remote=remote,
            max_batch=backend.max_batch,
            max_age=max_age if remote is None else remote.max_age,
            patience=patience if remote is None else 0.0,
            memo=memo,
            memo_key=memo_key,
            prepare=backend.prepare if remote is None and isinstance(backend, Preparing) else None,
        )

    def is_due(self, now: float) -> bool:
        """True if the oldest request has waited long enough."""
        narrow = 4 * len(self.pending) < self.max_batch
        return now >= self.pending[0][2] + (self.patience if narrow else 0.0)

    def delays(self, now: float) -> set[float]:
        """Return the seconds until it may be due."""
        return {self.pending[0][2] - now, self.pending[0][2] + self.patience - now}

    def take(self) -> list[tuple[Q, asyncio.Future[A], float]]:
        """Remove and return the next wave."""
        wave, self.pending = self.pending[: self.max_batch], self.pending[self.max_batch :]
        self.counts.waves += 1
        self.counts.requests += len(wave)
        return wave


class _EngineResources:
    """Threads and entered remotes of an engine; `worlds`, `encoder` and `models` exist while it is held.

    They are opened by the first holder and closed after the last: a run of conversations holds them for its length, a
    single question in an event loop of the user's own until it is answered.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._holders = 0
        self._is_open = False

    @asynccontextmanager
    async def hold(self, ports: Sequence[Port[Any, Any]]) -> AsyncIterator[None]:
        """Open what is not open yet, the remotes of these ports included. Raise RuntimeError in a second event loop
        while another one holds them."""
        self._bind()
        self._holders += 1  # before the lock: who closes looks again, and a cancelled wait leaves nothing behind
        try:
            async with self._lock:
                await self._open(ports)
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
            raise RuntimeError("a wave engine serves one event loop at a time; make a Waves of its own for each loop")

    async def _open(self, ports: Sequence[Port[Any, Any]]) -> None:
        if not self._is_open:
            self.worlds = ThreadPoolExecutor(self._workers)
            self.encoder = ThreadPoolExecutor(1)  # a tokenizer serves no two at once
            self.models = ThreadPoolExecutor(max(_MODEL_THREADS, len(ports)))
            self._remotes, self._entered = AsyncExitStack(), set[int]()
            self._is_open = True
        for port in ports:
            if port.remote is not None and id(port) not in self._entered:
                await self._remotes.enter_async_context(port.remote)
                self._entered.add(id(port))

    async def _close(self) -> None:
        try:
            await self._remotes.aclose()
        finally:
            self._is_open = False
            for threads in (self.models, self.encoder, self.worlds):
                threads.shutdown()


class Waves:
    """Runs conversations and batches their requests. One instance serves any number of `run` calls, one at a
    time, and single questions in a loop of the user's own. `clock` defaults to the running event loop."""

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
        self._ports: list[Port[Any, Any]] = []
        self._acting = 0
        self._in_world = 0
        self._failed = False
        self._resources = _EngineResources(workers)
        self._tasks: set[asyncio.Task[Any]] = set()

    def model(self, backend: Backend[Request, Reply] | Remote[Request, Reply], memo: Memo | None = None) -> ChatModel:
        """A chat model whose calls are batched by this engine, remembered in `memo` where given."""
        return _Model(self.port(backend, memo, chat_memo_key))

    def port(
        self,
        backend: Backend[Q, A] | Remote[Q, A],
        memo: Memo | None = None,
        memo_key: Callable[[Q], Hashable] | None = None,
    ) -> Callable[[Q], Coroutine[Any, Any, A]]:
        """Any batched request-and-answer service as an awaitable function."""
        port = Port.of(backend, memo, memo_key, max_age=self._max_age, patience=self._patience)
        self._ports.append(port)

        async def ask(request: Q) -> A:
            return await self._ask(port, request)

        return ask

    @property
    def width(self) -> int:
        """Most conversations at the same time."""
        return self._width

    @property
    def is_patient(self) -> bool:
        """Whether narrow waves wait for worlds that compute."""
        return self._patience > 0

    @property
    def counts(self) -> list[WaveCounts]:
        """Per model, in the order they were made: waves sent, requests in them, answers remembered."""
        return [port.counts for port in self._ports]

    def open(self) -> AbstractAsyncContextManager[None]:
        """Threads and remotes for the running event loop, each opened once for all questions that are asked inside."""
        return self._resources.hold(())

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def _clock(self) -> Clock:
        return self._injected_clock or self._loop

    async def world(self, call: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Run a world's call in a worker thread and wait for it, also when the conversation is cancelled."""
        async with self.open():
            return await self._in_thread(call_in_thread, partial(call, *args, **kwargs), self._resources.worlds)

    async def close(self, call: Callable[[], R]) -> R:
        """The same for the call that ends a world's life, which is made although the conversation is cancelled."""
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
        """Play all conversations; their results in the order they were given. `on_done(index, result)` is
        called on the event loop as each one ends. The first exception cancels the rest and is raised."""
        return run_async(self.play(conversations, on_done))

    async def play(
        self,
        conversations: Iterable[Callable[[], Coroutine[Any, Any, R]]],
        on_done: Callable[[int, R], None] | None = None,
    ) -> list[R]:
        """`run` on an event loop that is there already."""
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
            async with self._resources.hold(self._ports):
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
        for port in self._ports:
            for _, future, _ in port.pending:
                future.cancel()
            port.pending.clear()
            port.busy = False

    async def _ask(self, port: Port[Q, A], request: Q) -> A:
        async with self._resources.hold((port,)):
            return await self._answer(port, request)

    async def _answer(self, port: Port[Q, A], request: Q) -> A:
        key = port.memo_key(request) if port.memo is not None and port.memo_key is not None else None
        if key is None or port.memo is None:
            return await self._enqueue(port, request)
        known = port.memo.get(key)
        if known is None:
            future: asyncio.Future[A] = self._loop.create_future()
            port.memo[key] = future
            try:
                answer = await self._enqueue(port, request)
            except BaseException:
                port.memo.pop(key, None)
                future.cancel()
                raise
            port.memo[key] = answer
            future.set_result(answer)
            return answer
        port.counts.remembered += 1
        if not isinstance(known, asyncio.Future):
            return known  # type: ignore[no-any-return]
        return await self.wait(known)

    async def _enqueue(self, port: Port[Q, A], request: Q) -> A:
        if port.prepare is not None:
            request = await self._in_thread(call_in_thread, partial(port.prepare, request), self._resources.encoder)
        future: asyncio.Future[A] = self._loop.create_future()
        port.pending.append((request, future, self._clock.time() + port.max_age))
        if len(port.pending) == 1:
            self._pump_when_due(port)
        try:
            return await self.wait(future)
        except asyncio.CancelledError:
            if not self._failed:  # else all that is pending is dropped at once
                port.pending = [waiting for waiting in port.pending if waiting[1] is not future]
            raise

    async def wait(self, future: asyncio.Future[A]) -> A:
        """Wait for what is no call of the conversation's own: a model's answer, a place on a site."""
        self._acting -= 1
        self._pump_soon()
        try:
            return await future
        finally:
            self._acting += 1

    def _pump_soon(self) -> None:
        self._loop.call_soon(self._pump)

    def _pump_when_due(self, port: Port[Q, A]) -> None:
        for delay in port.delays(self._clock.time()):
            self._clock.call_later(delay, self._pump)

    def _pump(self) -> None:
        if self._failed:  # the others are being cancelled, and what they asked is not paid for
            return
        idle = self._acting <= 0 and self._in_world == 0
        for port in self._ports:
            if port.busy or not port.pending:
                continue
            due = port.is_due(self._clock.time())
            if not (idle or due or len(port.pending) >= port.max_batch):
                continue
            if port.remote is not None:
                self._send_out(port, port.remote)
            elif port.backend is not None:
                port.busy = True
                task = self._loop.create_task(self._send(port, port.backend))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _send_out(self, port: Port[Q, A], remote: Remote[Q, A]) -> None:
        wave = port.take()
        try:
            for (_, future, _), answer in zip(wave, remote.send([request for request, _, _ in wave]), strict=True):
                answer.add_done_callback(partial(forward_result, future))
        except Exception as error:  # nothing is swallowed: it is raised in every conversation that waits for this wave
            fail_waiting([future for _, future, _ in wave], error)
        if port.pending:
            self._pump_when_due(port)
            self._pump_soon()

    async def _send(self, port: Port[Q, A], backend: Backend[Q, A]) -> None:
        wave = port.take()
        try:
            answers: Sequence[A] = await self._loop.run_in_executor(
                self._resources.models, backend.answer, [request for request, _, _ in wave]
            )
            for (_, future, _), answer in zip(wave, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        except Exception as error:  # nothing is swallowed: it is raised in every conversation that waits for this wave
            fail_waiting([future for _, future, _ in wave], error)
        finally:
            port.busy = False
            if port.pending:
                self._pump_when_due(port)
            self._pump_soon()
