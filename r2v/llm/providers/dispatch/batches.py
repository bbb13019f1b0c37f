"""The batch lane: questions into provider batches, each batch carried from intent to applied.

A batch is one task that walks the states of `journal_state.py`; a rerun starts the same walk at the journal's last row.
Cutting respects the provider's limits, the queue of tokens and the budget. Many batches are out at the same time.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from r2v.errors import EnvironmentFault, InputError
from r2v.llm.providers.dispatch.dispatch_policy import Plan
from r2v.llm.providers.dispatch.reconcile import Times, find, newest
from r2v.llm.providers.dispatch.results import Results, account
from r2v.llm.providers.provider import BatchState, Provider, ProviderFault
from r2v.llm.providers.provider_requests import Ask, Verdict, canonical, read_asks
from r2v.llm.providers.spending.budget import Till
from r2v.llm.providers.spending.journal_state import Batch
from r2v.log import logger
from r2v.randomness import uniform
from r2v.storage.files import write_lines

_LINE = 256
"""Bytes that a line of an input file has beside its body, at most."""
USUAL_WAIT = 1200.0
"""Seconds a batch takes where none has ended yet."""
_GROWTH, _LONGEST_POLL = 1.1, 20
"""Looks grow apart by this factor, up to so many times the first pause: about a twentieth of a wait is lost."""
_LOOKS = 10
"""Looks at a batch that is done before its missing files count as missing."""
_TRIES = 6
"""Creates that are clearly refused, of one batch, before the lane counts as broken."""


Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Starts a task whose error ends the run."""


class Outcome(Protocol):
    """Where the lane's results go."""

    async def settle(self, told: Sequence[tuple[Ask, Verdict]], batch: str | None) -> None:
        """Journal and hand on what is known of these."""
        ...

    def again(self, asks: Sequence[Ask], reason: str, *, free: bool = False) -> None:
        """Ask these once more, or give them up: a try has failed. A `free` one does not count."""
        ...

    def broken(self, asks: Sequence[Ask], reason: str) -> None:
        """Batches can't be had; what becomes of these is not the lane's to say."""
        ...


class BatchLane:
    """Provider batches of one run. inputs/ in `folder` holds the input files of those under way."""

    def __init__(
        self, provider: Provider, till: Till, plan: Plan, folder: Path, outcome: Outcome, times: Times, spawn: Spawn
    ) -> None:
        self._provider, self._till, self._plan, self._times = provider, till, plan, times
        self._outcome, self._spawn, self._folder = outcome, spawn, folder / "inputs"
        self._queue: deque[Ask] = deque()
        self._pumping = False
        self._token_cap = plan.queued_tokens
        self._took: deque[float] = deque(maxlen=21)
        self.flying: set[asyncio.Task[None]] = set()
        """Batches that are being made, until what came of it is journaled."""

    async def drain(self, grace: float) -> None:
        """Wait so many seconds for batches that are being made: one whose id is journaled need not be looked for. A
        later answer is given up: the journal must not be written any more."""
        if not self.flying:
            return
        logger.info(
            "  %s: stopping; %d batches are being made, their ids are waited for (%.0f s at most)",
            self._provider.name,
            len(self.flying),
            grace,
        )
        _, late = await asyncio.wait(self.flying, timeout=grace)
        for making in late:
            making.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def take(self, asks: Sequence[Ask]) -> None:
        """Send these in batches, as soon as may be."""
        self._queue.extend(asks)
        if self._queue and not self._pumping:
            self._pumping = True
            self._spawn(self._pump())

    @property
    def wait(self) -> float:
        """Seconds that a batch is likely to take: the median of the last ones."""
        return statistics.median(self._took) if self._took else USUAL_WAIT

    @property
    def queued(self) -> int:
        """Questions that are in no batch yet."""
        return len(self._queue)

    def resume(self) -> Iterator[Ask]:
        """Take up the journal's batches; the questions that are under way in them."""
        for batch in self._till.book.batches.values():
            path = self._path(batch)
            if not path.exists():
                raise InputError(
                    f"{path}: the input of a batch that the journal holds is gone; restore it from a "
                    "backup, or start a new run (which pays anew)"
                )
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != batch.sha256:
                    raise InputError(f"{path}: is not the file that the journal names; restore it from a backup")
            for ask in read_asks(path):
                self._till.book.name(ask.custom_id, ask.sha256)
                if ask.custom_id not in batch.settled:
                    batch.asks[ask.custom_id] = ask
            yield from batch.asks.values()
            self._spawn(self._carry(batch))

    def _path(self, batch: Batch) -> Path:
        return self._folder / f"{batch.key}.jsonl"

    async def _pump(self) -> None:
        try:
            while self._queue:
                asks, usd = self._cut()
                if asks:
                    await self._begin(asks, usd)
                    continue
                if self._till.purse.idle:
                    raise self._till.purse.exhausted(self._till.worst(self._queue[0], batch=True))
                await self._till.change()
        finally:
            self._pumping = False

    def _cut(self) -> tuple[list[Ask], float]:
        """The questions of the next batch, and what was held for them; none where they must wait."""
        limits, till = self._provider.limits, self._till
        most = min(limits.requests, self._plan.batch_size or limits.requests)
        size, usd, asks = 0, 0.0, list[Ask]()
        queued = sum(batch.tokens for batch in till.book.batches.values())
        tokens = 0
        while self._queue and len(asks) < most:
            ask = self._queue[0]
            worst = till.worst(ask, batch=True)
            over = self._token_cap is not None and queued + tokens + likely_tokens(ask) > self._token_cap
            if (
                (asks and size + ask.size + _LINE > 0.95 * limits.bytes)
                or (over and (asks or queued))
                or not till.hold(worst)
            ):
                break
            asks.append(self._queue.popleft())
            size, usd, tokens = size + ask.size + _LINE, usd + worst, tokens + likely_tokens(ask)
        return asks, usd

    async def _begin(self, asks: list[Ask], usd: float) -> None:
        """Put the input file and the intent on disk; then the batch goes its way."""
        book = self._till.book
        key = f"{book.run}-b{book.made}"
        path = self._folder / f"{key}.jsonl"
        write_lines(path, (canonical(self._provider.wire(ask)) for ask in asks))
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        await self._till.reserve(
            {
                "row": "intent",
                "batch": key,
                "count": len(asks),
                "bytes": path.stat().st_size,
                "sha256": sha256,
                "tokens": sum(map(likely_tokens, asks)),
                "usd": usd,
                "at": self._times.now(),
            }
        )
        batch = book.batches[key]
        batch.asks = {ask.custom_id: ask for ask in asks}
        self._spawn(self._carry(batch))

    async def _carry(self, batch: Batch) -> None:
        """From wherever it stands to applied."""
        began = self._times.now()
        if batch.id is None and not await self._make(batch):
            return
        state = await self._wait(batch)
        self._took.append(self._times.now() - began)
        if state.failed:
            await self._refused(batch, state)
            return
        results = Results(
            provider=self._provider,
            batch=batch,
            outcome=self._outcome,
            times=self._times,
            pause=self._plan.poll_seconds,
        )
        await results.collect(state)
        retry = results.retry
        await self._till.write({"row": "applied", "batch": batch.key, **results.counts})
        self._path(batch).unlink(missing_ok=True)
        self._outcome.again(retry, "")

    async def _make(self, batch: Batch) -> bool:
        """Have it made at the provider, once. False: it was refused, and its questions went elsewhere."""
        tries = 0
        while batch.id is None:
            try:
                await self._try_to_make(batch)
            except ProviderFault as fault:
                if fault.kind == "account":
                    raise account(self._provider.name, fault.reason) from None
                if _is_queue_full(fault):
                    await self._drop(batch, fault.reason, shrink=True)
                    return False
                tries += fault.status != 429
                if batch.sent_at is not None:
                    continue  # what became of it is looked for at once
                if tries >= _TRIES:
                    self._outcome.broken(await self._drop(batch, fault.reason), fault.reason)
                    return False
                await self._times.sleep(
                    max(fault.retry_after or 0.0, min(60.0, self._plan.poll_seconds / 60 * 2.0**tries))
                )
        return True

    async def _try_to_make(self, batch: Batch) -> None:
        """One walk from intent to created. Raises ProviderFault where it was not made, or could not be begun."""
        write, name = self._till.write, {"batch": batch.key}
        if batch.sent_at is not None:
            made = await find(self._provider, batch, self._till.book, self._plan, self._times)
            if made is not None:
                await write({"row": "created", **name, "id": made.id})
                return
            await write({"row": "absent", **name, "why": "not listed"})
        if self._provider.limits.uploads and batch.file_id is None:
            await write({"row": "file", **name, "id": await self._provider.upload(self._path(batch))})
        making = asyncio.get_running_loop().create_task(self._create(batch, await newest(self._provider)))
        self.flying.add(making)
        making.add_done_callback(self._made)
        await asyncio.shield(making)

    def _made(self, making: asyncio.Task[None]) -> None:
        self.flying.discard(making)
        if not making.cancelled():
            making.exception()  # whoever waited for it has it

    async def _create(self, batch: Batch, before: str | None) -> None:
        """From sending to created, which nobody cuts short: what lies between would have to be looked for."""
        write, name = self._till.write, {"batch": batch.key}
        await write({"row": "sending", **name, "at": self._times.now(), "newest": before})
        try:
            state = await self._provider.create(batch.key, self._path(batch), batch.file_id)
        except ProviderFault as fault:
            if fault.ambiguous:
                await write({"row": "unknown", **name, "at": self._times.now(), "why": fault.reason})
            else:
                await write({"row": "absent", **name, "why": fault.reason})
            raise
        await write({"row": "created", **name, "id": state.id})

    async def _wait(self, batch: Batch) -> BatchState:
        """Look, ever more seldom, until it is done."""
        assert batch.id is not None
        looks, late, pause, known = 0, 0, self._plan.poll_seconds, ""
        while True:
            try:
                state = await self._provider.look(batch.id)
            except ProviderFault as fault:
                if fault.kind == "account":
                    raise account(self._provider.name, fault.reason) from None
                if fault.status == 404:
                    raise EnvironmentFault(
                        f"batch {batch.id}: the provider does not know it any more: {fault.reason}; "
                        "its answers can't be had: start a new run, which pays anew"
                    ) from None
                state = None
            if state is not None and state.done:
                late += state.lagging
                if not state.lagging or late > _LOOKS:
                    if not batch.ended:
                        await self._till.write({"row": "ended", "batch": batch.key, "state": state.state})
                    return state
            elif state is not None and state.state != known:
                known = state.state
                logger.debug("  batch %s: %s", batch.id, known)
            looks += 1
            self._till.stir()
            await self._times.sleep(pause * (0.8 + 0.4 * uniform("poll", batch.key, looks)))
            pause = min(_GROWTH * pause, _LONGEST_POLL * self._plan.poll_seconds)

    async def _refused(self, batch: Batch, state: BatchState) -> None:
        """A batch that failed as a whole: nothing was run, and nothing is billed."""
        reason = "; ".join(f"{code}: {message}" for code, _, message in state.errors[:3]) or state.state
        if any("token_limit" in code for code, _, _ in state.errors):
            await self._drop(batch, reason, shrink=True)
            return
        lines = {line: f"{code}: {message}" for code, line, message in state.errors if line is not None}
        asks = list(batch.asks.values())
        bad = [
            (ask, Verdict(kind="fatal", reason=lines[number], billed=False))
            for number, ask in enumerate(asks, 1)
            if number in lines
        ]
        await self._outcome.settle(bad, batch.key)
        named = {ask.custom_id for ask, _ in bad}
        rest = [ask for ask in await self._drop(batch, reason) if ask.custom_id not in named]
        if bad:
            self.take(rest)
        else:
            self._outcome.again(rest, reason)

    async def _drop(self, batch: Batch, reason: str, *, shrink: bool = False) -> list[Ask]:
        """Give a batch up that was never run; with `shrink` its questions go into smaller ones."""
        asks = list(batch.asks.values())
        queued = sum(one.tokens for one in self._till.book.batches.values())
        alone = len(self._till.book.batches) == 1 and len(asks) == 1
        await self._till.write({"row": "dropped", "batch": batch.key, "why": reason})
        self._path(batch).unlink(missing_ok=True)
        if shrink:
            self._token_cap = max(1, min(queued, self._token_cap or queued) // 2)
            logger.info(
                "  %s: its queue takes no more (%s); at most %d tokens are queued from here on",
                self._provider.name,
                reason,
                self._token_cap,
            )
            if alone:
                await self._times.sleep(self._plan.poll_seconds)
            self.take(asks)
        return asks


def likely_tokens(ask: Ask) -> int:
    """About how many prompt tokens an ask has: a third of its bytes."""
    return ask.tokens_in // 3


def _is_queue_full(fault: ProviderFault) -> bool:
    said = f"{fault.code} {fault.reason}".lower()
    return fault.status in (400, 413, 429) and any(
        word in said for word in ("token_limit", "enqueued", "queue", "request_too_large")
    )
