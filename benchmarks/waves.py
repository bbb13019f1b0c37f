"""Waiting for provider batches: hours and dollars of five policies, and our memory and CPU per request.

    python benchmarks/waves.py                  # 1,000 conversations on a virtual clock: five ways side by side
    python benchmarks/waves.py --draws 12       # 12 draws of waits and lengths: mean, worst, bounds
    python benchmarks/waves.py --requests 50001 # through the emulator: memory, CPU a request, cut at the real limits

The first is the real engine (waves, journal, dispatchers) over a provider that answers after a lognormal wait; the
clock is the event loop's, which jumps. The barrier has the same waits, turn by turn; one variant sees the end of a
batch at once, the other polls as the engine does. The n-th batch whose earliest request has a given turn waits equally
long in every policy, so that they differ by more than luck. Without a limit on a batch's size all send the same
batches: the engine then is slower than the barrier by its polls. The default row uses the defaults of `teacher.*`.

Bound: a conversation's next request cannot leave before its last answer, and waits are unknown beforehand, so under any
policy the longest conversation is expected to take as many mean waits as it has turns. The policies do not know the
lengths of conversations either; the row of --draws with known lengths shows the value of knowing them.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import logging
import math
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from r2v.llm.providers.dispatch.batch_polling import pause_of
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.prices import Rate, rate_of
from r2v.llm.providers.provider import BatchLimits, BatchState, CallResult
from r2v.llm.providers.provider_requests import ProviderRequest, RequestVerdict, ResultLine
from r2v.llm.providers.remote import ProviderRemote
from r2v.llm.types import ChatModel, Request
from r2v.llm.waves import Waves
from r2v.randomness import generator
from r2v.rollout.model_factory import WIDEST
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message
from tests.llm.jumping import JumpingLoop

MEDIAN, SIGMA, DIRECT = 1200.0, 1.0, 5.0
"""A batch's wait (lognormal: median, sigma) and a direct call's time, in seconds."""
SIZES = (25, 50, 100, 250, 500, None)
"""Requests in a batch, at most; None: the provider's limit."""
TAIL = 0.45
"""Share of conversations whose requests are direct calls in the row with a tail."""
RATE = Rate(model="m", input=2.5, output=10.0, batch=0.5, cached=0.5, write_5m=1.0, write_1h=1.0)
"""USD per million tokens, as of a model whose replies cost four times its prompts."""


class Waits:
    """Seconds that batches take."""

    def __init__(self, draw: int) -> None:
        self._draw, self._sent = draw, Counter[int]()

    def next(self, turn: int) -> float:
        """Return the wait of the next batch whose earliest request is of this turn, 0 at first."""
        self._sent[turn] += 1
        normal = generator("wait", self._draw, turn, self._sent[turn]).gauss(0.0, 1.0)
        return MEDIAN * math.exp(SIGMA * normal)


class Slow:
    """A provider whose batches wait a lognormal time."""

    name = "openai"
    limits = BatchLimits(requests=50_000, bytes=200_000_000, endpoint="", uploads=False)

    def __init__(self, loop: JumpingLoop, draw: int = 0) -> None:
        self._loop, self._waits, self._batches = loop, Waits(draw), list[tuple[float, list[str]]]()
        self.direct = 0

    def request_body(self, request: Request) -> Mapping[str, Any]:
        return {
            "model": "m",
            "max_completion_tokens": request.max_tokens,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        }

    def input_line(self, request: ProviderRequest) -> dict[str, Any]:
        return {"custom_id": request.custom_id, "body": request.body}

    async def call(self, request: ProviderRequest) -> CallResult:
        self.direct += 1
        await asyncio.sleep(DIRECT)
        return CallResult(verdict=_answer())

    async def upload(self, path: Path) -> str:
        raise TypeError("not asked for")

    async def create_batch(self, key: str, path: Path, file_id: str | None) -> BatchState:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        turn = min(len(line["body"]["messages"]) for line in lines) - 1
        self._batches.append((self._loop.now + self._waits.next(turn), [line["custom_id"] for line in lines]))
        return await self.retrieve_batch(str(len(self._batches) - 1))

    async def list_batches(self) -> AsyncIterator[BatchState]:
        for number in reversed(range(len(self._batches))):
            yield await self.retrieve_batch(str(number))

    async def retrieve_batch(self, batch_id: str) -> BatchState:
        until, names = self._batches[int(batch_id)]
        done = self._loop.now >= until
        return BatchState(
            id=batch_id,
            state="completed" if done else "in_progress",
            done=done,
            total=len(names),
            completed=len(names),
            files=("all",),
        )

    async def results(self, state: BatchState) -> AsyncIterator[ResultLine]:
        for name in self._batches[int(state.id)][1]:
            yield ResultLine(custom_id=name, verdict=_answer())

    async def cancel_batch(self, batch_id: str) -> None:
        raise TypeError("not asked for")

    async def close(self) -> None:
        pass


def _answer() -> RequestVerdict:
    return RequestVerdict(kind="ok", text="yes", tokens=TokenCounts(fresh=100, output=10))


def turns_of(number: int, draw: int = 0) -> int:
    """Return the turns of a conversation: 2 to 20."""
    return generator("turns", draw, number).randint(2, 20)


def bound(count: int, draw: int = 0) -> float:
    """Return a lower bound on the expected seconds of any policy: the longest conversation's turns, each a mean
    wait."""
    return max(turns_of(number, draw) for number in range(count)) * MEDIAN * math.exp(SIGMA**2 / 2)


def barrier(count: int, size: int | None, seen: Callable[[float, int], float], draw: int = 0) -> float:
    """Return the seconds until all are done if every turn waits for the slowest batch of the turn before. seen(wait,
    in_flight): the moment at which the end of a batch is noticed."""
    lengths, total, waits = [turns_of(n, draw) for n in range(count)], 0.0, Waits(draw)
    for turn in range(max(lengths)):
        sent = math.ceil(sum(length > turn for length in lengths) / (size or count))
        total += max(seen(waits.next(turn), sent) for _ in range(sent))
    return total


def informed(count: int, size: int | None, draw: int) -> float:
    """Return the seconds of a policy that knows every length: conversations with most turns left leave first and at
    once, the others wait for them wherever that saves a batch."""
    lengths, now, batches = [turns_of(n, draw) for n in range(count)], 0.0, 0
    left, waits, waiting, most = list(lengths), Waits(draw), list(range(count)), size or count
    out: list[tuple[float, int, list[int]]] = []
    while waiting or out:
        waiting.sort(key=lambda number: -left[number])
        while waiting:
            longest = max((left[number] for _, _, batch in out for number in batch), default=0)
            enough = math.ceil((len(waiting) + sum(len(batch) for _, _, batch in out)) / most)
            if left[waiting[0]] < longest and len(out) >= enough:
                break
            batch, waiting = waiting[:most], waiting[most:]
            turn = min(lengths[number] - left[number] for number in batch)
            heapq.heappush(out, (now + waits.next(turn), batches, batch))
            batches += 1
        now, _, batch = heapq.heappop(out)
        for number in batch:
            left[number] -= 1
        waiting += [number for number in batch if left[number]]
    return now


def at_once(wait: float, _: int) -> float:
    """Return the moment at which a notified barrier sees the end of a batch."""
    return wait


def polled(wait: float, in_flight: int) -> float:
    """Return the moment at which the engine's polls would see the end of a batch."""
    policy, waited = DispatchPolicy(), 0.0
    while waited < wait:
        waited += pause_of(waited, in_flight, policy)
    return waited


def rolling(count: int, policy: DispatchPolicy, folder: Path, draw: int = 0) -> tuple[float, int, int, float]:
    """Run the engine itself; return (seconds, requests, direct calls, USD)."""
    loop = JumpingLoop()
    provider = Slow(loop, draw)
    remote = ProviderRemote(
        provider,
        RATE,
        folder,
        policy,
        scope={},
        clock=loop.clock,
        sync=lambda descriptor: None,
    )
    waves = Waves(max_conversations=min(count, WIDEST))
    model = waves.model(remote)
    loop.play(waves.play(partial(_talk, model, n, turns_of(n, draw)) for n in range(count)))
    return loop.now, waves.counts[0].requests, provider.direct, remote.tracker.state.spent


async def _talk(model: ChatModel, number: int, turns: int) -> None:
    for turn in range(turns):
        messages = [Message(role="user", content=f"{number}")] + [Message(role="assistant", content="yes")] * turn
        await model.reply(Request(messages=tuple(messages), key=("bench", number, turn), max_tokens=16))


def waiting(count: int) -> None:
    """Print the ways side by side, for batches of several sizes."""
    print(
        f"{count} conversations of 2-20 turns; a batch's wait is lognormal (median {MEDIAN / 60:.0f} min, "
        f"sigma {SIGMA:g}), a direct call takes {DIRECT:g} s"
    )
    print(f"  {'batches of':<12}{'way':<28}{'hours':>7}  {'speed':>6}  {'USD':>7}  at full price")
    for size in SIZES:
        slow, cheapest = barrier(count, size, at_once), 0.0
        shown = "no limit" if size is None else str(size)
        polling = barrier(count, size, polled)
        for name, seconds in (("barrier", slow), ("barrier, polling as we do", polling), ("bound", bound(count))):
            print(f"  {shown:<12}{name:<28}{seconds / 3600:7.1f}  {slow / seconds:5.2f}x")
        ways = {
            "batches alone": DispatchPolicy(mode="batch", batch_size=size),
            f"batches + direct tail {TAIL}": DispatchPolicy(
                mode="auto", batch_size=size, waiting_usd_per_hour=0.0, tail=TAIL
            ),
            "default": DispatchPolicy(batch_size=size),
        }
        for name, policy in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds, requests, direct, usd = rolling(count, policy, Path(folder))
            cheapest = cheapest or usd
            more = f"{direct / requests:.1%}, {usd / cheapest - 1:+.1%} dollars"
            print(f"  {shown:<12}{name:<28}{seconds / 3600:7.1f}  {slow / seconds:5.2f}x  {usd:7.3f}  {more}")


def means(count: int, draws: int) -> None:
    """Print the ways without direct calls, which cost the same: mean hours over several draws of waits and lengths."""
    print(
        f"{count} conversations, {draws} draws of waits and lengths\n"
        f"  {'batches of':<12}{'way':<28}{'hours':>7}  {'speed':>6}  least speed of a draw",
    )
    for size in SIZES:
        hours: dict[str, list[float]] = {}
        for draw in range(1, draws + 1):
            with tempfile.TemporaryDirectory() as folder:
                ours = rolling(count, DispatchPolicy(mode="batch", batch_size=size), Path(folder), draw)[0]
            ways = {
                "barrier": barrier(count, size, at_once, draw),
                "barrier, polling as we do": barrier(count, size, polled, draw),
                "batches alone": ours,
                "all lengths known": informed(count, size, draw),
                "bound": bound(count, draw),
            }
            for name, seconds in ways.items():
                hours.setdefault(name, []).append(seconds / 3600)
        for name, some in hours.items():
            speed = sum(hours["barrier"]) / sum(some)
            least = min(slow / quick for slow, quick in zip(hours["barrier"], some, strict=True))
            print(
                f"  {size or 'no limit':<12}{name:<28}{sum(some) / draws:7.2f}  {speed:5.3f}x  {least:5.3f}x",
                flush=True,
            )


def volume(count: int) -> None:
    """Send one turn of `count` conversations through the emulator over HTTP; print memory, CPU and cuts."""
    for provider in ("openai", "anthropic"):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", _SERVE, folder]
            served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert served.stdout is not None
            try:
                openai_url, anthropic_url = served.stdout.readline().split()
                os.environ.update(
                    OPENAI_API_KEY="sk-none",
                    ANTHROPIC_API_KEY="sk-none",
                    OPENAI_BASE_URL=openai_url,
                    ANTHROPIC_BASE_URL=anthropic_url,
                )
                for width in (WIDEST, count):
                    measured = multiprocessing.get_context("spawn").Process(
                        target=_volume, args=(provider, count, width, Path(folder) / f"journal-{width}")
                    )
                    measured.start()
                    measured.join()
            finally:
                served.terminate()
                served.wait()


_SERVE = """
import sys, time
from pathlib import Path
from r2v.emulator import Emulator, Lifecycle
with Emulator(folder=Path(sys.argv[1]) / "emulator", lifecycle=Lifecycle(polls=1)) as e:
    print(e.openai_url, e.anthropic_url, flush=True)
    while True:
        time.sleep(60)
"""


def _volume(provider: str, count: int, width: int, folder: Path) -> None:
    """Measure one provider; the first question is not counted, as the SDK builds its types at the first answer."""
    first, start, _ = _asked(provider, 1, 1, folder / "first")
    cpu, grown, cuts = _asked(provider, count, width, folder / "all")
    print(
        f"  {provider:<10}{count} requests, {width} conversations at a time, in {len(cuts)} batches (largest "
        f"{max(cuts)}): {1e3 * cpu / count:.2f} ms CPU and {1024 * grown / count:.1f} KiB of peak memory a request, "
        f"after {first:.1f} CPU-s and {start:.0f} MiB to begin with"
    )


def _asked(provider: str, count: int, width: int, folder: Path) -> tuple[float, float, list[int]]:
    """Return CPU seconds, growth of the peak memory in MiB, and the sizes of the batches."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
    from r2v.llm.providers.anthropic import Anthropic
    from r2v.llm.providers.openai import OpenAI

    rate = rate_of(provider, "gpt-5.2" if provider == "openai" else "claude-haiku-4-5")
    client: Any = OpenAI(rate) if provider == "openai" else Anthropic(rate)
    remote = ProviderRemote(client, rate, folder, DispatchPolicy(mode="batch", poll_seconds=0.5), scope={})
    waves = Waves(max_conversations=width)
    model = waves.model(remote)
    waves.run(partial(_talk, model, number, 1) for number in range(count))
    cpu = time.process_time() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss) / 1024
    rows = [json.loads(line) for line in (folder / "journal.jsonl").open()]
    return cpu, grown, [row["count"] for row in rows if row["row"] == "intent"]


def main() -> None:
    """Run the selected comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--draws", type=int, help="print means over this number of draws of waits and lengths")
    parser.add_argument("--requests", type=int, help="send this number of requests through the emulator")
    arguments = parser.parse_args()
    logging.getLogger("r2v").setLevel(logging.ERROR)
    if arguments.requests:
        volume(arguments.requests)
    elif arguments.draws:
        means(arguments.conversations, arguments.draws)
    else:
        waiting(arguments.conversations)


if __name__ == "__main__":
    main()
