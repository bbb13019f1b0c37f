"""Batch dispatcher: requests into provider batches, and each batch from intent to applied.

Each batch has one task that takes it through the states of `r2v.llm.providers.spending.journal_state`; a rerun resumes
at the journal's last row. A batch is bounded by the provider's limits, the limit of queued tokens and the budget. Many
batches are in flight at the same time; `Coalescer` decides when the next one is sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from r2v.errors import InputError
from r2v.llm.providers.dispatch.batch_creation import BatchCreation, is_queue_full
from r2v.llm.providers.dispatch.batch_or_direct import BatchCaching
from r2v.llm.providers.dispatch.batch_polling import BatchWaits, wait_until_done
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, ResultHandler, Spawn, WallClock, account_error
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.dispatch.results import BatchResults
from r2v.llm.providers.provider import BatchProvider, BatchState, ProviderFault
from r2v.llm.providers.provider_requests import (
    ProviderRequest,
    RequestVerdict,
    canonical_json,
    likely_prompt_tokens,
    read_requests,
)
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.providers.spending.journal_state import JournalBatch
from r2v.log import logger
from r2v.storage.files import file_sha256, write_lines

_AHEAD = 0.5
"""Least lead in turns for which a cohort waits."""
_REMAINDER = 0.4
"""Share of a full batch below which a remainder gets no chain of its own."""
_LONGEST_WAIT = 4.0
"""Longest wait, in typical times of a batch."""


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The requests of one batch in flight."""

    count: int
    turn: float
    """Their mean turn."""


def cohort_of(requests: Sequence[ProviderRequest]) -> Cohort:
    """Return the cohort of one or more requests."""
    return Cohort(count=len(requests), turn=fmean(request.turn for request in requests))


class Coalescer:
    """Decision when the next batch of one run may be sent: cohorts at different turns join one batch again.

    A batch takes about the same time whatever its size, so a run takes as long as its slowest chain of batches, and
    each cohort with batches of its own is one more chain. A cohort is therefore sent at once, unless answers of a batch
    are still being read, whose conversations will soon send requests too; or one batch less could hold all open
    requests, or all but a small remainder, and the cohort is at least half a turn ahead of a batch in flight: waiting
    for those behind costs no time, because they decide when the run ends. The remainder joins the others at the next
    turn. No request waits longer than a few batches take. `benchmarks/waves.py` compares the rule with a barrier.
    """

    def __init__(self) -> None:
        self._held_since: float | None = None
        self.reading = 0
        """Number of batches whose results are being read."""

    def hold(
        self, waiting: Sequence[ProviderRequest], out: Sequence[Cohort], max_batch: int, typical_wait: float, now: float
    ) -> float:
        """Return the most seconds that the next batch of `waiting`, sorted by turn, has to wait; 0: send it now. out:
        cohorts in flight. max_batch: most requests in a batch."""
        if not self._should_wait(waiting, out, max_batch):
            self._held_since = None
            return 0.0
        self._held_since = now if self._held_since is None else self._held_since
        left = self._held_since + _LONGEST_WAIT * typical_wait - now
        if left <= 0:
            self._held_since = None
        return max(0.0, left)

    def _should_wait(self, waiting: Sequence[ProviderRequest], out: Sequence[Cohort], max_batch: int) -> bool:
        if self.reading:
            return True
        if not out:
            return False
        full = (len(waiting) + sum(cohort.count for cohort in out)) / max_batch
        enough = max(1, math.ceil(full - _REMAINDER))
        ahead = cohort_of(waiting[:max_batch]).turn - min(cohort.turn for cohort in out)
        return len(out) >= enough and ahead >= _AHEAD


_LINE_OVERHEAD = 256
"""Most bytes of an input line in addition to its body."""
_BYTES_MARGIN = 0.95
"""Share of the provider's byte limit that a batch may fill."""
_CREATE_ATTEMPTS = 6
"""Number of clear refusals of one batch after which batches count as unavailable."""


class BatchDispatcher:
    """Provider batches of one run. inputs/ in `folder` holds the input files of batches in flight."""

    def __init__(
        self,
        provider: BatchProvider,
        tracker: SpendTracker,
        policy: DispatchPolicy,
        folder: Path,
        handler: ResultHandler,
        clock: WallClock,
        spawn: Spawn,
        outage: Outage,
        caching: BatchCaching,
    ) -> None:
        self._provider, self._tracker, self._policy, self._clock = provider, tracker, policy, clock
        self._outage, self._caching = outage, caching
        self._handler, self._spawn, self._folder = handler, spawn, folder / "inputs"
        self._creation = BatchCreation(provider, tracker, policy, clock, self._input_path)
        self._queue: list[ProviderRequest] = []
        self._coalescer = Coalescer()
        self._cohorts: dict[str, Cohort] = {}
        """Cohorts in flight by batch key."""
        self._is_filling = False
        self._alarm = float("inf")
        self._max_queued_tokens = policy.queued_tokens
        self.waits = BatchWaits()

    async def drain(self, grace: float) -> None:
        """Wait up to `grace` seconds for the ids of batches in creation."""
        await self._creation.drain(grace)

    async def cancel(self) -> None:
        """Cancel all batches at the provider; their answers so far are kept."""
        for batch in list(self._tracker.state.batches.values()):
            if batch.id is None:
                continue
            try:
                await self._provider.cancel_batch(batch.id)
            except ProviderFault as fault:  # it may have ended meanwhile: the next poll shows it
                logger.info("  batch not cancelled: batch=%s reason=%s", batch.id, fault.reason)

    def submit(self, requests: Sequence[ProviderRequest]) -> None:
        """Queue requests for batches, which are sent as soon as the limits allow."""
        self._queue.extend(requests)
        self._queue.sort(key=lambda request: request.turn)  # conversations furthest behind decide when the run ends
        self._look()

    def _look(self) -> None:
        """Start to fill batches, unless a task already does."""
        if self._queue and not self._is_filling:
            self._is_filling = True
            self._spawn(self._fill_batches())

    def _look_later(self, seconds: float) -> None:
        at = self._clock.now() + seconds
        if at < self._alarm:
            self._alarm = at
            self._spawn(self._ring(at))

    async def _ring(self, at: float) -> None:
        await self._clock.sleep(max(0.0, at - self._clock.now()))
        if self._alarm == at:
            self._alarm = float("inf")
        self._look()

    @property
    def queued(self) -> int:
        """Number of requests in no batch yet."""
        return len(self._queue)

    def resume(self) -> Iterator[ProviderRequest]:
        """Resume the journal's batches and yield their requests in flight. Raise InputError if the input file of a
        batch is gone or changed: without it, results cannot be matched to requests."""
        for batch in self._tracker.state.batches.values():
            path = self._input_path(batch)
            if not path.is_file():
                raise InputError(
                    f"{path}: the input of a batch in the journal is gone; restore it from a backup, or start a new "
                    "run (which pays anew)"
                )
            if file_sha256(path) != batch.sha256:
                raise InputError(f"{path}: differs from the file that the journal records; restore it from a backup")
            for request in read_requests(path):
                self._tracker.state.register(request.custom_id, request.sha256)
                if request.custom_id not in batch.accounted:
                    batch.requests[request.custom_id] = request
            if batch.requests:
                self._cohorts[batch.key] = cohort_of(list(batch.requests.values()))
            yield from batch.requests.values()
            self._spawn(self._carry(batch))

    def _input_path(self, batch: JournalBatch) -> Path:
        return self._folder / f"{batch.key}.jsonl"

    async def _fill_batches(self) -> None:
        """Fill batches from the queue until it is empty; one task at a time runs this."""
        try:
            while self._queue:
                if seconds := self._hold():
                    self._look_later(seconds)
                    return
                budget, next_usd = self._tracker.budget, self._tracker.worst_case(self._queue[0], batch=True)
                if budget.remaining < next_usd * len(self._queue):
                    wish = sum(self._tracker.worst_case(request, batch=True) for request in self._queue)
                    await budget.extend(next_usd, wish)
                requests, usd = self._cut_batch()
                if requests:
                    await self._begin(requests, usd)
                    continue
                if await budget.extend(next_usd):
                    continue
                if budget.idle:
                    raise budget.exhausted(next_usd)
                await self._tracker.wait_for_change()
        finally:
            self._is_filling = False

    def _hold(self) -> float:
        """Return the seconds for which the next batch is held back."""
        out = [self._cohorts[key] for key in self._tracker.state.batches if key in self._cohorts]
        return self._coalescer.hold(self._queue, out, self._max_requests, self.waits.typical, self._clock.now())

    @property
    def _max_requests(self) -> int:
        limit = self._provider.limits.requests
        return min(limit, self._policy.batch_size or limit)

    def _cut_batch(self) -> tuple[list[ProviderRequest], float]:
        """Take the requests of the next batch from the queue, and return them with the USD set aside for them; none if
        they must wait."""
        limits, tracker = self._provider.limits, self._tracker
        queued = sum(batch.tokens for batch in tracker.state.batches.values())
        requests = list[ProviderRequest]()
        size, usd, tokens = 0, 0.0, 0
        for request in self._queue[: self._max_requests]:
            line_size, line_tokens = request.size + _LINE_OVERHEAD, likely_prompt_tokens(request)
            if requests and size + line_size > _BYTES_MARGIN * limits.bytes:
                break
            over_queue = self._max_queued_tokens is not None and queued + tokens + line_tokens > self._max_queued_tokens
            # a single request is sent even above the limit, because no later batch could be smaller
            if over_queue and (requests or queued):
                break
            worst_case = tracker.worst_case(request, batch=True)
            if not tracker.set_aside(worst_case):
                break
            requests.append(request)
            size, usd, tokens = size + line_size, usd + worst_case, tokens + line_tokens
        del self._queue[: len(requests)]
        return requests, usd

    async def _begin(self, requests: list[ProviderRequest], usd: float) -> None:
        """Write the input file, then the intent, and start the batch's task."""
        state = self._tracker.state
        key = f"{state.run}-b{state.num_batches}"
        path = self._folder / f"{key}.jsonl"
        wait = self.waits.typical
        # the file comes first: an intent without its input could never be matched to results
        write_lines(path, (canonical_json(self._caching.line(request, wait)) for request in requests))
        await self._tracker.write_reservation(
            {
                "row": "intent",
                "batch": key,
                "count": len(requests),
                "bytes": path.stat().st_size,
                "sha256": file_sha256(path),
                "tokens": sum(map(likely_prompt_tokens, requests)),
                "usd": usd,
                "at": self._clock.now(),
            }
        )
        batch = state.batches[key]
        batch.requests = {request.custom_id: request for request in requests}
        self._cohorts[key] = cohort_of(requests)
        self._spawn(self._carry(batch))

    async def _carry(self, batch: JournalBatch) -> None:
        """Take a batch from its present step to applied."""
        began = self._clock.now()
        if batch.id is None and not await self._create(batch):
            return
        state = await wait_until_done(
            self._provider, batch, self._tracker, self._policy, self._clock, self._outage, self.waits.soonest
        )
        self.waits.add(self._clock.now() - began)
        if state.failed:
            await self._handle_refused(batch, state)
            return
        results = BatchResults(
            provider=self._provider,
            batch=batch,
            recorder=self._handler,
            clock=self._clock,
            pause=self._policy.poll_seconds,
            outage=self._outage,
        )
        self._coalescer.reading += 1
        try:
            await results.collect(state)
            await self._tracker.write({"row": "applied", "batch": batch.key, **results.counts})
        finally:
            self._coalescer.reading -= 1
            self._cohorts.pop(batch.key, None)
        self._handler.requeue(results.retry, "")
        # conversations with an answer send their next request within that time; held requests then join them
        self._look_later(self._policy.flush_seconds)
        await self._creation.tidy(batch)

    async def _create(self, batch: JournalBatch) -> bool:
        """Create a batch at the provider exactly once; return False if it was refused and its requests were dropped."""
        refusals = 0
        while batch.id is None:
            try:
                await self._creation.attempt(batch)
                self._outage.answered()
            except ProviderFault as fault:
                if fault.kind == "account":
                    raise account_error(self._provider.name, fault.reason) from None
                if is_queue_full(fault):
                    await self._drop(batch, fault.reason, shrink=True)
                    return False
                is_outage = self._outage.failed(fault)
                refusals += fault.status != 429 and not is_outage  # a rate limit or outage says nothing of batches
                if batch.sent_at is not None:
                    continue  # it may have been created: the next attempt looks for it at once
                if is_outage:
                    await self._outage.over()
                    continue
                if refusals >= _CREATE_ATTEMPTS:
                    self._handler.batches_unavailable(await self._drop(batch, fault.reason), fault.reason)
                    return False
                backoff = min(60.0, self._policy.poll_seconds / 20 * 2.0**refusals)
                await self._clock.sleep(max(fault.retry_after or 0.0, backoff))
        return True

    async def _handle_refused(self, batch: JournalBatch, state: BatchState) -> None:
        """Handle a batch that failed as a whole after its creation: no request was run or billed."""
        reason = "; ".join(f"{code}: {message}" for code, _, message in state.errors[:3]) or state.state
        if any("token_limit" in code for code, _, _ in state.errors):
            await self._drop(batch, reason, shrink=True)
            return
        error_of_line = {line: f"{code}: {message}" for code, line, message in state.errors if line is not None}
        invalid = [
            (request, RequestVerdict(kind="fatal", reason=error_of_line[number], billed=False))
            for number, request in enumerate(batch.requests.values(), 1)
            if number in error_of_line
        ]
        await self._handler.record_results(invalid, batch.key)
        invalid_ids = {request.custom_id for request, _ in invalid}
        dropped = await self._drop(batch, reason)
        rest = [request for request in dropped if request.custom_id not in invalid_ids]
        if invalid:  # the others were refused for these lines alone
            self.submit(rest)
        else:
            self._handler.requeue(rest, reason)

    async def _drop(self, batch: JournalBatch, reason: str, *, shrink: bool = False) -> list[ProviderRequest]:
        """Drop a batch that was never run and return its requests. shrink: send them again in smaller batches."""
        requests = list(batch.requests.values())
        in_flight = self._tracker.state.batches
        queued = sum(other.tokens for other in in_flight.values())
        is_alone = len(in_flight) == 1 and len(requests) == 1
        await self._tracker.write({"row": "dropped", "batch": batch.key, "why": reason})
        self._input_path(batch).unlink(missing_ok=True)
        if shrink:
            self._max_queued_tokens = max(1, min(queued, self._max_queued_tokens or queued) // 2)
            logger.info(
                "  provider's queue is full; queueing less: provider=%s max_queued_tokens=%d reason=%s",
                self._provider.name,
                self._max_queued_tokens,
                reason,
            )
            if is_alone:
                # other users of the account fill the queue
                await self._clock.sleep(self._policy.poll_seconds)
            self.submit(requests)
        return requests
