"""The wave engine: the departure of a wave, its state, exceptions, and results that do not depend on timing."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2v.errors import EnvironmentFault
from r2v.llm.types import Reply, Request, Sample, Usage
from r2v.llm.waves import Waves
from r2v.wire.message import Message

PATIENCE = 30.0
"""Seconds after which a blocked thread gives up, so that a broken engine fails instead of hanging."""


class Echo:
    """Answers its requests and keeps every wave; refuses a second call while one is running."""

    def __init__(self, max_batch: int = 64) -> None:
        self.max_batch = max_batch
        self.waves: list[list[str]] = []
        self.threads: set[int] = set()
        self._alone = threading.Lock()

    def answer(self, questions: Sequence[Any]) -> list[Any]:
        assert self._alone.acquire(blocking=False), "asked while it was still answering"
        try:
            self.threads.add(threading.get_ident())
            self.waves.append(list(questions))
            return [f"re: {question}" for question in questions]
        finally:
            self._alone.release()


class Manual:
    """A clock that stands still until the test sets its lateness."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._calls: list[tuple[float, int, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._calls, (self.now + delay, len(self._calls), callback))

    def set(self, now: float) -> None:
        self.now = now
        while self._calls and self._calls[0][0] <= now:
            heapq.heappop(self._calls)[2]()


async def settle() -> None:
    """Let everything happen that needs neither time nor an environment."""
    for _ in range(20):
        await asyncio.sleep(0)


def blocked(event: threading.Event) -> None:
    assert event.wait(PATIENCE), "nobody released this world"


def test_no_barrier_a_slow_world_holds_nobody() -> None:
    waves, backend, released = Waves(workers=2, max_age=0.001), Echo(), threading.Event()
    ask = waves.batched(backend)
    order: list[str] = []

    async def fast(name: str) -> None:
        for turn in range(8):
            await ask(f"{name}{turn}")
            await waves.world(int)
        order.append(name)
        if len(order) == 3:
            released.set()

    async def slow() -> None:
        await waves.world(blocked, released)
        await ask("slow")
        order.append("slow")

    waves.run([slow, *(partial(fast, name) for name in "abc")])
    assert sorted(order[:3]) == ["a", "b", "c"] and order[3] == "slow"
    assert "slow" in backend.waves[-1] and len(backend.waves) > 8


def test_a_wave_leaves_when_it_is_full() -> None:
    waves, backend, released = Waves(workers=1, clock=Manual()), Echo(max_batch=3), threading.Event()
    ask, sizes = waves.batched(backend), list[list[int]]()

    async def asking(number: int) -> None:
        await ask(number)

    async def watching() -> None:
        await settle_until(lambda: len(backend.waves) == 2)
        await settle()
        sizes.append([len(wave) for wave in backend.waves])
        released.set()

    waves.run([partial(waves.world, blocked, released), watching, *(partial(asking, n) for n in range(7))])
    assert sizes == [[3, 3]], "the seventh waits: it is young, alone, and somebody is still acting"
    assert [len(wave) for wave in backend.waves] == [3, 3, 1]


async def settle_until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to that")


def test_a_wave_leaves_when_its_oldest_question_is_old() -> None:
    clock = Manual(now=100.0)
    waves, backend, released = Waves(workers=1, max_age=5.0, clock=clock), Echo(), threading.Event()
    ask, seen = waves.batched(backend), list[int]()

    async def watching() -> None:
        await settle()
        for now in (102.0, 104.9, 105.0):
            clock.set(now)
            await settle()
            seen.append(waves.counts[0].waves)
        released.set()

    waves.run([partial(waves.world, blocked, released), watching, partial(ask, "q")])
    assert seen == [0, 0, 1]


def test_the_timer_finds_its_question_old_whatever_the_hour() -> None:
    """(t + age) - t is not age in floating point; a wave must not miss its deadline by a rounding."""
    for number in range(200):
        clock = Manual(now=0.1 * number)
        waves, backend, released = Waves(workers=1, max_age=0.02, clock=clock), Echo(), threading.Event()
        ask, left = waves.batched(backend), list[int]()

        async def watching(
            clock: Manual = clock, waves: Waves = waves, left: list[int] = left, released: threading.Event = released
        ) -> None:
            await settle()
            clock.set(clock.now + 0.02)
            await settle()
            left.append(waves.counts[0].waves)
            released.set()

        waves.run([partial(waves.world, blocked, released), watching, partial(ask, "q")])
        assert left == [1], f"started at {clock.now - 0.02!r}"


def test_a_wave_leaves_when_nobody_acts() -> None:
    """The clock stands still and the wave is not full: waiting longer could add nothing."""
    waves, backend = Waves(workers=2, clock=Manual()), Echo(max_batch=1000)
    ask = waves.batched(backend)

    async def conversation(number: int) -> list[str]:
        return [await ask(f"{number}.{turn}") for turn in range(3)]

    results = waves.run(partial(conversation, number) for number in range(5))
    assert [sorted(wave) for wave in backend.waves] == [[f"{n}.{turn}" for n in range(5)] for turn in range(3)]
    assert results[4] == ["re: 4.0", "re: 4.1", "re: 4.2"]
    assert (waves.counts[0].waves, waves.counts[0].requests) == (3, 15)


def test_a_question_waits_for_worlds_that_are_being_stepped() -> None:
    """No conversation acts, but one will return from its environment and ask: the wave waits for it."""
    waves, backend = Waves(workers=1, clock=Manual()), Echo()
    ask = waves.batched(backend)

    async def later() -> None:
        await waves.world(time.sleep, 0.05)
        await ask("b")

    waves.run([partial(ask, "a"), later])
    assert backend.waves == [["a", "b"]]


def test_a_question_left_over_keeps_its_own_hour() -> None:
    """Three ask at 4, two at 5, when four leave, full; the last is due at 10, though the answer came at 6."""
    answered = threading.Event()

    class Slow(Echo):
        def answer(self, questions: Sequence[Any]) -> list[Any]:
            blocked(answered)
            return super().answer(questions)

    clock = Manual(now=4.0)
    waves, backend, released = Waves(workers=1, max_age=5.0, clock=clock), Slow(max_batch=4), threading.Event()
    ask, seen = waves.batched(backend), list[int]()

    async def late(number: int) -> None:
        while clock.now < 5.0:
            await asyncio.sleep(0)
        await ask(number)

    async def watching() -> None:
        await settle()
        clock.set(5.0)
        await settle_until(lambda: waves.counts[0].waves == 1)
        clock.set(6.0)
        answered.set()
        await settle_until(lambda: len(backend.waves) == 1)
        for now in (9.9, 10.0):
            await settle()
            clock.set(now)
            await settle()
            seen.append(waves.counts[0].waves)
        released.set()

    waves.run(
        [
            partial(waves.world, blocked, released),
            watching,
            *(partial(ask, n) for n in range(3)),
            *(partial(late, n) for n in (3, 4)),
        ]
    )
    assert seen == [1, 2]


def chat(text: str, *, key: int = 0, temperature: float = 0.0) -> Request:
    return Request(messages=(Message(role="user", content=text),), key=(key,), temperature=temperature)


class Parrot:
    """A chat backend that repeats the user's words and counts its calls."""

    max_batch = 4

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def answer(self, questions: Sequence[Request]) -> list[Reply]:
        self.asked += [(question.messages[-1].content, question.key) for question in questions]
        return [Reply(samples=(Sample(text=q.messages[-1].content),), usage=Usage(), model="parrot") for q in questions]


def test_each_distinct_greedy_question_is_asked_once() -> None:
    waves, parrot = Waves(), Parrot()
    model = waves.model(parrot, {})

    async def conversation(number: int) -> list[str]:
        texts = ["same", f"only {number % 3}", "same"]
        return [(await model.reply(chat(text, key=number))).text for text in texts]

    results = waves.run(partial(conversation, number) for number in range(9))
    assert [text for text, _ in sorted(parrot.asked)] == ["only 0", "only 1", "only 2", "same"]
    assert results == [["same", f"only {number % 3}", "same"] for number in range(9)]
    assert waves.counts[0].cached == 9 * 3 - 4


def test_sampled_questions_are_remembered_by_their_key() -> None:
    waves, parrot = Waves(), Parrot()
    model = waves.model(parrot, {})
    waves.run(partial(model.reply, chat("q", key=number % 4, temperature=0.7)) for number in range(12))
    assert sorted(parrot.asked) == [("q", (key,)) for key in range(4)]


def test_without_a_memo_every_question_is_asked() -> None:
    waves, parrot = Waves(), Parrot()
    waves.run([partial(waves.model(parrot).reply, chat("q"))] * 5)
    assert len(parrot.asked) == 5


def test_a_memo_serves_engines_one_after_the_other() -> None:
    cache: dict[Any, Any] = {}
    parrot = Parrot()
    for _ in range(3):
        waves = Waves()
        assert waves.run([partial(waves.model(parrot, cache).reply, chat("q"))])[0].text == "q"
    assert len(parrot.asked) == 1


def test_results_in_the_order_given_and_told_as_they_end() -> None:
    waves = Waves(max_conversations=8)
    ask, ended = waves.batched(Echo()), list[tuple[int, int]]()

    async def conversation(length: int) -> int:
        for turn in range(length):
            await ask(turn)
        return length

    lengths = [5, 1, 4, 2, 3]
    assert waves.run((partial(conversation, n) for n in lengths), lambda i, r: ended.append((i, r))) == lengths
    assert ended == sorted(enumerate(lengths), key=lambda pair: pair[1])
    assert waves.run([]) == []


def test_the_first_exception_cancels_the_rest_and_is_raised() -> None:
    waves, backend = Waves(workers=2), Echo()
    ask, ended = waves.batched(backend), list[str]()
    problem = ValueError("this conversation's own")

    async def failing() -> None:
        await ask("a")
        raise problem

    async def endless(name: str) -> None:
        try:
            while True:
                await ask(name)
                await waves.world(int)
        except asyncio.CancelledError:
            ended.append(name)
            raise

    with pytest.raises(ValueError) as raised:
        waves.run([partial(endless, "b"), failing, partial(endless, "c")])
    assert raised.value is problem
    assert sorted(ended) == ["b", "c"]
    assert waves.run([partial(ask, "again")]) == ["re: again"], "the engine serves on"


class Moody:
    """A backend that fails until the test lets it succeed."""

    max_batch = 8

    def __init__(self) -> None:
        self.well = False

    def answer(self, questions: Sequence[str]) -> list[str]:
        if not self.well:
            raise EnvironmentFault("no answer can be had")
        return [question.upper() for question in questions]


def test_a_failed_wave_is_raised_and_not_remembered() -> None:
    waves, backend, cache = Waves(), Moody(), dict[Any, Any]()
    ask = waves.batched(backend, cache, str)
    with pytest.raises(EnvironmentFault, match="no answer can be had"):
        waves.run([partial(ask, "q")] * 3)
    assert cache == {}
    backend.well = True
    assert waves.run([partial(ask, "q")] * 3) == ["Q"] * 3


def test_a_backend_that_answers_too_few_is_an_error() -> None:
    class Short:
        max_batch = 8

        def answer(self, questions: Sequence[str]) -> list[str]:
            return list(questions[1:])

    waves = Waves()
    with pytest.raises(ValueError, match="shorter"):
        waves.run([partial(waves.batched(Short()), "q")] * 2)


def test_a_worlds_exception_reaches_its_conversation() -> None:
    waves = Waves()

    async def conversation() -> str:
        try:
            await waves.world(int, "no number")
        except ValueError:
            return await waves.world(str, "caught")
        return "not raised"

    assert waves.run([conversation]) == ["caught"]


def test_worlds_and_models_run_off_the_event_loop() -> None:
    waves, backend, worlds = Waves(workers=2), Echo(), set[int]()
    ask = waves.batched(backend)

    async def conversation(number: int) -> None:
        worlds.add(await waves.world(threading.get_ident))
        await ask(number)

    waves.run(partial(conversation, number) for number in range(8))
    assert worlds and backend.threads
    assert threading.get_ident() not in worlds | backend.threads


def test_no_more_conversations_than_allowed_and_none_begun_early() -> None:
    waves = Waves(max_conversations=3)
    ask, open_now, most, begun = waves.batched(Echo()), set[int](), list[int](), list[int]()

    async def conversation(number: int) -> None:
        open_now.add(number)
        most.append(len(open_now))
        await ask(number)
        await waves.world(int)
        open_now.remove(number)

    def conversations() -> Any:
        for number in range(10):
            begun.append(len(open_now))
            yield partial(conversation, number)

    waves.run(conversations())
    assert max(most) == 3
    assert max(begun) == 2, "the next conversation is made when one has ended, not before"


def test_a_backend_is_never_asked_twice_at_once_and_two_answer_side_by_side() -> None:
    meeting = threading.Barrier(2, timeout=PATIENCE)

    class Meeting(Echo):
        def answer(self, questions: Sequence[Any]) -> list[Any]:
            if not self.waves:
                meeting.wait()
            return super().answer(questions)

    waves = Waves(workers=2, max_age=0.0)
    backends = [Meeting(max_batch=2), Meeting(max_batch=2)]
    ports = [waves.batched(backend) for backend in backends]

    async def conversation(number: int) -> None:
        for turn in range(5):
            await ports[number % 2](f"{number}.{turn}")
            await waves.world(int)

    waves.run(partial(conversation, number) for number in range(12))
    for backend in backends:
        assert len(backend.threads) >= 1 and sum(map(len, backend.waves)) == 30
        assert max(map(len, backend.waves)) <= 2


def fold(state: str, answer: str) -> str:
    return hashlib.sha256(f"{state}|{answer}".encode()).hexdigest()[:8]


Script = list[bool]
"""A conversation's turns: True asks the model, False steps the world."""


def alone(number: int, script: Script) -> str:
    """Return the result of a conversation without an engine."""
    state = str(number)
    for is_question in script:
        state = fold(state, f"re: {state}" if is_question else "world")
    return state


@settings(max_examples=40)
@given(
    scripts=st.lists(st.lists(st.booleans(), max_size=8), max_size=12),
    workers=st.integers(1, 4),
    width=st.integers(1, 16),
    max_batch=st.integers(1, 8),
    max_age=st.sampled_from([0.0, 0.001, 10.0]),
    remember=st.booleans(),
)
def test_company_changes_no_result(
    scripts: list[Script], workers: int, width: int, max_batch: int, max_age: float, remember: bool
) -> None:
    waves = Waves(workers=workers, max_conversations=width, max_age=max_age)
    ask: Callable[[str], Coroutine[Any, Any, str]] = waves.batched(
        Echo(max_batch), {} if remember else None, str if remember else None
    )

    async def conversation(number: int, script: Script) -> str:
        state = str(number)
        for is_question in script:
            answer = await ask(state) if is_question else "world"
            state = fold(state, answer) if is_question else await waves.world(fold, state, answer)
        return state

    results = waves.run(partial(conversation, number, script) for number, script in enumerate(scripts))
    assert results == [alone(number, script) for number, script in enumerate(scripts)]


def test_requests_are_made_ready_while_the_backend_answers_others() -> None:
    """A wave is being answered until the next question is ready: neither thread waits for the other."""
    readied, answering = threading.Event(), threading.Event()

    class Reading(Echo):
        def __init__(self) -> None:
            super().__init__(max_batch=1)
            self.readers: set[int] = set()

        def prepare(self, request: str) -> str:
            self.readers.add(threading.get_ident())
            if request == "late":
                blocked(answering)
                readied.set()
            return f"{request}, read"

        def answer(self, questions: Sequence[Any]) -> list[Any]:
            if not self.waves:
                answering.set()
                blocked(readied)
            return super().answer(questions)

    backend, loop = Reading(), threading.get_ident()
    waves = Waves(workers=2, max_age=0.0)
    ask = waves.batched(backend)
    assert waves.run([partial(ask, "first"), partial(ask, "late")]) == ["re: first, read", "re: late, read"]
    assert len(backend.readers) == 1 and not backend.readers & {*backend.threads, loop}


def test_a_narrow_wave_has_patience_and_one_a_quarter_full_has_none() -> None:
    clock = Manual(now=100.0)
    waves, released = Waves(workers=1, max_age=1.0, patience=4.0, clock=clock), threading.Event()
    narrow, wide = (waves.batched(Echo(max_batch=8)) for _ in range(2))
    seen = list[list[int]]()

    async def watching() -> None:
        await settle()
        for now in (101.0, 104.9, 105.0):
            clock.set(now)
            await settle()
            seen.append([counts.waves for counts in waves.counts])
        released.set()

    requests = [partial(narrow, "q"), partial(wide, "q"), partial(wide, "r")]
    waves.run([partial(waves.world, blocked, released), watching, *requests])
    assert seen == [[0, 1], [0, 1], [1, 1]]


class Line:
    """A remote that is entered for as long as it is used."""

    max_batch, max_age = 64, 0.0

    def __init__(self) -> None:
        self.entered = self.left = 0

    async def __aenter__(self) -> None:
        self.entered += 1

    async def __aexit__(self, *error: object) -> None:
        self.left += 1

    def send(self, requests: Sequence[Any]) -> list[asyncio.Future[str]]:
        answers = [asyncio.get_running_loop().create_future() for _ in requests]
        for request, answer in zip(requests, answers, strict=True):
            answer.set_result(f"re: {request}")
        return answers


def test_in_a_loop_of_the_users_own_a_question_is_answered_and_questions_share_waves_and_connections() -> None:
    waves, backend, line = Waves(), Echo(), Line()
    ask, ask_far = waves.batched(backend), waves.batched(line)

    async def alone() -> list[str]:
        return [await ask("a"), await ask_far("b"), await waves.world(str.upper, "c")]

    async def together() -> list[str]:
        async with waves.open():
            await ask_far("d")
            return list(await asyncio.gather(*(ask(name) for name in "efg"), ask_far("h")))

    for _ in range(2):  # each time in another loop
        assert asyncio.run(alone()) == ["re: a", "re: b", "C"]
    assert (line.entered, line.left) == (2, 2)
    assert asyncio.run(together()) == ["re: e", "re: f", "re: g", "re: h"]
    assert (line.entered, line.left) == (3, 3)
    assert backend.waves == [["a"], ["a"], ["e", "f", "g"]]
    assert waves.run([lambda: ask("i")]) == ["re: i"]


def test_a_question_that_is_cancelled_before_its_wave_leaves_is_not_asked() -> None:
    waves, backend, released = Waves(max_age=PATIENCE), Echo(), threading.Event()
    ask = waves.batched(backend)

    async def main() -> str:
        async with waves.open():
            world = asyncio.create_task(waves.world(blocked, released))
            await settle()
            gone = asyncio.create_task(ask("gone"))
            await settle()
            gone.cancel()
            surviving = asyncio.create_task(ask("kept"))
            await settle()
            released.set()
            await world
            return await surviving

    assert asyncio.run(main()) == "re: kept" and backend.waves == [["kept"]]


def test_a_failed_run_inside_an_open_engine_leaves_it_usable() -> None:
    waves, backend = Waves(), Echo()
    ask = waves.batched(backend)

    async def fail() -> str:
        await ask("first")
        raise EnvironmentFault("broken")

    async def main() -> str:
        async with waves.open():
            with pytest.raises(EnvironmentFault, match="broken"):
                await waves.play([fail, lambda: ask("other")])
            return await ask("again")

    assert asyncio.run(main()) == "re: again"


def test_two_event_loops_cannot_share_an_engine_at_the_same_time() -> None:
    waves, backend = Waves(), Echo()
    ask = waves.batched(backend)

    async def main() -> None:
        async with waves.open():
            with pytest.raises(RuntimeError, match="one event loop at a time"):
                await asyncio.to_thread(asyncio.run, ask("elsewhere"))

    asyncio.run(main())
    assert not backend.waves
