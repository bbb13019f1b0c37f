"""Waves as a person follows them, and a limit on how many are out at the same time.

    Processing wave 1 with 5 requests for Agent 1 (first messages)
    Wave 1 conversations: conversation_test_0, conversation_test_1, ...
    Wave 1 completed in 125.50 seconds, avg 25.10 sec per message

Agent 1 is whoever opened. There is no barrier between waves, so one may hold messages of several turns; it
says so then. `watched` puts the log in front of a backend.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType

from r2v.llm.types import Backend, Remote, Reply, Request
from r2v.llm.waves import hand_on, refuse
from r2v.log import logger

_KINDS = {0: "first messages", 1: "responses"}
SHOWN = 20
"""Conversations named in a line, at most."""


class WaveLog:
    """Numbers waves, over all models of a job, and tells of each."""

    def __init__(
        self, num_messages: int, tell: Callable[[str], None] = logger.info, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num_messages, self._tell, self._clock, self._waves = num_messages, tell, clock, 0

    def begins(self, questions: Sequence[Request]) -> Callable[[], None]:
        """Tell of a wave that goes out; what comes back is called when all its answers are there."""
        self._waves += 1
        number, start = self._waves, self._clock()
        names = [str(question.key[2]) for question in questions]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        requests = f"{len(names)} request{'s' * (len(names) > 1)}"
        self._tell(f"Processing wave {number} with {requests}{self._for_whom(questions)}")
        self._tell(f"Wave {number} conversations: {', '.join(names[:SHOWN])}{more}")

        def ended() -> None:
            took = self._clock() - start
            self._tell(f"Wave {number} completed in {took:.2f} seconds, avg {took / len(names):.2f} sec per message")

        return ended

    def _for_whom(self, questions: Sequence[Request]) -> str:
        turns = sorted(Counter(self._turn(int(question.key[3])) for question in questions).items())
        if len(turns) == 1:
            return f" for {turns[0][0]}"
        return ": " + ", ".join(f"{count} for {turn}" for turn, count in turns)

    def _turn(self, number: int) -> str:
        if number >= self._num_messages:
            return f"Agent {number - self._num_messages + 1} (guesses)"
        return f"Agent {number % 2 + 1} ({_KINDS.get(number, f'message {number + 1}')})"


class _Watched:
    """A backend that answers wave by wave."""

    def __init__(self, backend: Backend[Request, Reply], log: WaveLog, max_batch: int) -> None:
        self.max_batch = min(max_batch, backend.max_batch)
        self._backend, self._log = backend, log

    def answer(self, questions: Sequence[Request]) -> Sequence[Reply]:
        ended = self._log.begins(questions)
        answers = self._backend.answer(questions)
        ended()
        return answers


class _WatchedRemote:
    """A remote of which at most `max_out` waves are under way."""

    def __init__(self, remote: Remote[Request, Reply], log: WaveLog, max_batch: int, max_out: int | None) -> None:
        self.max_batch, self.max_age = min(max_batch, remote.max_batch), remote.max_age
        self._remote, self._log, self._max_out, self._out = remote, log, max_out, 0
        self._waiting: deque[tuple[Sequence[Request], list[asyncio.Future[Reply]]]] = deque()

    async def __aenter__(self) -> object:
        return await self._remote.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._remote.__aexit__(kind, error, trace)

    def send(self, questions: Sequence[Request]) -> Sequence[asyncio.Future[Reply]]:
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Reply]] = [loop.create_future() for _ in questions]
        self._waiting.append((questions, answers))
        self._send_waiting()
        return answers

    def _send_waiting(self) -> None:
        while self._waiting and (self._max_out is None or self._out < self._max_out):
            questions, answers = self._waiting.popleft()
            ended, left = self._log.begins(questions), [len(questions)]
            try:
                sent = self._remote.send(questions)
            except Exception as error:  # it may be an earlier wave's turn: who asked in that one is told, nobody else
                refuse(answers, error)
                continue
            self._out += 1
            for asked, answer in zip(answers, sent, strict=True):
                answer.add_done_callback(partial(self._landed, asked, left, ended))

    def _landed(
        self, asked: asyncio.Future[Reply], left: list[int], ended: Callable[[], None], answer: asyncio.Future[Reply]
    ) -> None:
        hand_on(asked, answer)
        left[0] -= 1
        if left[0] == 0:
            self._out -= 1
            ended()
            self._send_waiting()


def watched(
    backend: Backend[Request, Reply] | Remote[Request, Reply], log: WaveLog, max_batch: int, max_out: int | None = None
) -> Backend[Request, Reply] | Remote[Request, Reply]:
    """The backend with waves of at most `max_batch` requests, told of in the log; of a remote one at most `max_out`
    of them at the same time (None: any number)."""
    if isinstance(backend, Remote):
        return _WatchedRemote(backend, log, max_batch, max_out)
    return _Watched(backend, log, max_batch)
