"""Wave log: lines about every wave of requests, and a limit on the number of waves in flight.

    Processing wave 1 with 5 requests for Agent 1 (first messages)
    Wave 1 conversations: conversation_test_0, conversation_test_1, ...
    Wave 1 completed in 125.50 seconds, avg 25.10 sec per message

Agent 1 is the opener. Without a barrier between waves, a wave may contain messages of several turns; the line then
counts each. `with_wave_log` puts the log in front of a backend.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from r2v.llm.futures import fail_waiting, forward_result
from r2v.llm.types import Backend, Remote, Reply, Request

_KINDS = {0: "first messages", 1: "responses"}
MAX_NAMED = 20
"""Largest number of conversations named in one line."""


class WaveLog:
    """Counter of the waves of all models of a job, which reports each to `on_line`."""

    def __init__(self, num_messages: int, on_line: Callable[[str], None]) -> None:
        self._num_messages, self._on_line = num_messages, on_line
        self._num_waves = 0

    def wave_started(self, requests: Sequence[Request]) -> Callable[[], None]:
        """Report a wave that is sent. Return the callable to call once all its replies have arrived."""
        self._num_waves += 1
        number, start = self._num_waves, time.monotonic()
        # A player's request has the key ("game", job, conversation, number of the message).
        names = [str(request.key[2]) for request in requests]
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        count = f"{len(names)} request{'s' * (len(names) > 1)}"
        self._on_line(f"Processing wave {number} with {count}{self._turns(requests)}")
        self._on_line(f"Wave {number} conversations: {', '.join(names[:MAX_NAMED])}{more}")

        def wave_completed() -> None:
            seconds = time.monotonic() - start
            average = seconds / len(names)
            self._on_line(f"Wave {number} completed in {seconds:.2f} seconds, avg {average:.2f} sec per message")

        return wave_completed

    def _turns(self, requests: Sequence[Request]) -> str:
        turns = sorted(Counter(self._turn(int(request.key[3])) for request in requests).items())
        if len(turns) == 1:
            return f" for {turns[0][0]}"
        return ": " + ", ".join(f"{count} for {turn}" for turn, count in turns)

    def _turn(self, number: int) -> str:
        if number >= self._num_messages:
            return f"Agent {number - self._num_messages + 1} (guesses)"
        return f"Agent {number % 2 + 1} ({_KINDS.get(number, f'message {number + 1}')})"


class _LoggedBackend:
    """A synchronous backend with logged waves."""

    def __init__(self, backend: Backend[Request, Reply], log: WaveLog, max_batch: int) -> None:
        self.max_batch = min(max_batch, backend.max_batch)
        self._backend, self._log = backend, log

    def answer(self, questions: Sequence[Request]) -> Sequence[Reply]:
        wave_completed = self._log.wave_started(questions)
        replies = self._backend.answer(questions)
        wave_completed()
        return replies


@dataclass(kw_only=True)
class _OpenWave:
    """A wave in flight: the number of missing replies, and the callback for its end."""

    num_open: int
    on_completed: Callable[[], None]


class _LoggedRemote:
    """A remote with logged waves, at most `max_out` of them in flight."""

    def __init__(self, remote: Remote[Request, Reply], log: WaveLog, max_batch: int, max_out: int | None) -> None:
        self.max_batch, self.max_age = min(max_batch, remote.max_batch), remote.max_age
        self._remote, self._log, self._max_out, self._num_out = remote, log, max_out, 0
        self._waiting: deque[tuple[Sequence[Request], list[asyncio.Future[Reply]]]] = deque()

    async def __aenter__(self) -> object:
        return await self._remote.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._remote.__aexit__(kind, error, trace)

    def send(self, questions: Sequence[Request]) -> Sequence[asyncio.Future[Reply]]:
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[Reply]] = [loop.create_future() for _ in questions]
        self._waiting.append((questions, replies))
        self._send_waiting()
        return replies

    def _send_waiting(self) -> None:
        while self._waiting and (self._max_out is None or self._num_out < self._max_out):
            questions, replies = self._waiting.popleft()
            wave = _OpenWave(num_open=len(questions), on_completed=self._log.wave_started(questions))
            try:
                sent = self._remote.send(questions)
            except Exception as error:
                # This may run in another wave's callback, so the error must reach only those awaiting this wave.
                fail_waiting(replies, error)
                continue
            self._num_out += 1
            for reply, sent_reply in zip(replies, sent, strict=True):
                sent_reply.add_done_callback(partial(self._on_reply, reply, wave))

    def _on_reply(self, reply: asyncio.Future[Reply], wave: _OpenWave, sent_reply: asyncio.Future[Reply]) -> None:
        forward_result(reply, sent_reply)
        wave.num_open -= 1
        if wave.num_open == 0:
            self._num_out -= 1
            wave.on_completed()
            self._send_waiting()


def with_wave_log(
    backend: Backend[Request, Reply] | Remote[Request, Reply], log: WaveLog, max_batch: int, max_out: int | None = None
) -> Backend[Request, Reply] | Remote[Request, Reply]:
    """Return the backend with logged waves of at most `max_batch` requests; a remote has at most `max_out` waves in
    flight (None: any number)."""
    if isinstance(backend, Remote):
        return _LoggedRemote(backend, log, max_batch, max_out)
    return _LoggedBackend(backend, log, max_batch)
