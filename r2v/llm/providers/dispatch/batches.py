"""The batch dispatcher: requests into provider batches, each batch carried from intent to applied.

A batch is one task that walks the states of `r2v.llm.providers.spending.journal_state`; a rerun starts the same walk at
the journal's last row. A batch is cut at the provider's limits, at the limit of queued tokens and at the budget. Many
batches are in flight at the same time; who waits for whom is `r2v.llm.providers.dispatch.gathering`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from r2v.errors import InputError
from r2v.llm.providers.dispatch.batch_caching import BatchCaching
from r2v.llm.providers.dispatch.batch_creation import BatchCreation, input_sha256, is_queue_full
from r2v.llm.providers.dispatch.batch_polling import BatchWaits, wait_until_done
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.gathering import Crowd, Gathering, crowd_of
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.dispatch.result_handler import ResultHandler, Spawn, WallClock, account_error
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
from r2v.storage.files import write_lines

_LINE_OVERHEAD = 256
"""Bytes that a line of an input file has beside its body, at most."""
_BYTES_MARGIN = 0.95
"""Share of the provider's byte limit that a batch may fill."""
_CREATE_ATTEMPTS = 6
"""Create calls of one batch that are clearly refused before batches count as unavailable."""


class BatchDispatcher:
    """Provider batches of one run. inputs/ in `folder` holds the input files of those in flight."""

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
        self._gathering = Gathering()
        self._crowds: dict[str, Crowd] = {}
        """By the key of their batch."""
        self._is_filling = False
        self._alarm = float("inf")
        self._max_queued_tokens = policy.queued_tokens
        self.waits = BatchWaits()

    async def drain(self, grace: float) -> None:
        """Wait up to `grace` seconds for the ids of batches that are being created."""
        await self._creation.drain(grace)

    async def cancel(self) -> None:
        """Ask the provider to stop all batches; what they have answered is kept."""
        for batch in list(self._tracker.state.batches.values()):
            if batch.id is None:
                continue
            try:
                await self._provider.cancel_batch(batch.id)
            except ProviderFault as fault:  # it may have ended meanwhile: the next poll shows it
                logger.info("  batch %s: not cancelled: %s", batch.id, fault.reason)

    def submit(self, requests: Sequence[ProviderRequest]) -> None:
        """Send these in batches as soon as the limits allow."""
        self._queue.extend(requests)
        self._queue.sort(key=lambda request: request.turn)
        self._look()

    def _look(self) -> None:
        """Cut batches, if that is not being done."""
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
        """Requests that are in no batch yet."""
        return len(self._queue)

    def resume(self) -> Iterator[ProviderRequest]:
        """Resume the journal's batches; their requests that are in flight. Raises InputError where the input file of a
        batch is gone or changed: without it, results could not be matched to requests."""
        for batch in self._tracker.state.batches.values():
            path = self._input_path(batch)
            if not path.is_file():
                raise InputError(
                    f"{path}: the input of a batch that the journal holds is gone; restore it from a "
                    "backup, or start a new run (which pays anew)"
                )
            if input_sha256(path) != batch.sha256:
                raise InputError(f"{path}: is not the file that the journal names; restore it from a backup")
            for request in read_requests(path):
                self._tracker.state.register(request.custom_id, request.sha256)
                if request.custom_id not in batch.accounted:
                    batch.requests[request.custom_id] = request
            if batch.requests:
                self._crowds[batch.key] = crowd_of(list(batch.requests.values()))
            yield from batch.requests.values()
            self._spawn(self._carry(batch))

    def _input_path(self, batch: JournalBatch) -> Path:
        return self._folder / f"{batch.key}.jsonl"

    async def _fill_batches(self) -> None:
        """Cut batches from the queue until it is empty; one task at a time does this."""
        try:
            while self._queue:
                if held := self._hold():
                    self._look_later(held)
                    return
                budget, next_usd = self._tracker.budget, self._tracker.worst_case(self._queue[0], batch=True)
                if budget.remaining < next_usd * len(self._queue):
                    wish = sum(self._tracker.worst_case(one, batch=True) for one in self._queue)
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
        """Seconds for which the next batch may be held back."""
        out = [self._crowds[key] for key in self._tracker.state.batches if key in self._crowds]
        return self._gathering.hold(self._queue, out, self._max_requests, self.waits.typical, self._clock.now())

    @property
    def _max_requests(self) -> int:
        limit = self._provider.limits.requests
        return min(limit, self._policy.batch_size or limit)

    def _cut_batch(self) -> tuple[list[ProviderRequest], float]:
        """The requests of the next batch and the USD that were set aside for them; none where they must wait."""
        limits, tracker = self._provider.limits, self._tracker
        queued = sum(batch.tokens for batch in tracker.state.batches.values())
        requests = list[ProviderRequest]()
        size, usd, tokens = 0, 0.0, 0
        for request in self._queue[: self._max_requests]:
            line_size, line_tokens = request.size + _LINE_OVERHEAD, likely_prompt_tokens(request)
            if requests and size + line_size > _BYTES_MARGIN * limits.bytes:
                break
            over_queue = self._max_queued_tokens is not None and queued + tokens + line_tokens > self._max_queued_tokens
            # a request that is alone is sent even over the limit: it could never go otherwise
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
        """Put the input file and then the intent on disk; from there on the batch carries itself."""
        state = self._tracker.state
        key = f"{state.run}-b{state.num_batches}"
        path = self._folder / f"{key}.jsonl"
        wait = self.waits.typical
        write_lines(path, (canonical_json(self._caching.line(request, wait)) for request in requests))
        await self._tracker.write_reservation(
            {
                "row": "intent",
                "batch": key,
                "count": len(requests),
                "bytes": path.stat().st_size,
                "sha256": input_sha256(path),
                "tokens": sum(map(likely_prompt_tokens, requests)),
                "usd": usd,
                "at": self._clock.now(),
            }
        )
        batch = state.batches[key]
        batch.requests = {request.custom_id: request for request in requests}
        self._crowds[key] = crowd_of(requests)
        self._spawn(self._carry(batch))

    async def _carry(self, batch: JournalBatch) -> None:
        """From wherever it stands to applied."""
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
        self._gathering.reading += 1
        try:
            await results.collect(state)
            await self._tracker.write({"row": "applied", "batch": batch.key, **results.counts})
        finally:
            self._gathering.reading -= 1
            self._crowds.pop(batch.key, None)
        self._handler.requeue(results.retry, "")
        # who was answered asks again within that time, and takes along what is held
        self._look_later(self._policy.flush_seconds)
        await self._creation.tidy(batch)

    async def _create(self, batch: JournalBatch) -> bool:
        """Create it at the provider, once. False: it was refused, and its requests went elsewhere."""
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
                refusals += fault.status != 429 and not is_outage
                if batch.sent_at is not None:
                    continue  # whether it was created is not known: the next attempt looks for it at once
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
        """A batch that failed as a whole after its creation: nothing was run, and nothing is billed."""
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
        if invalid:
            self.submit(rest)
        else:
            self._handler.requeue(rest, reason)

    async def _drop(self, batch: JournalBatch, reason: str, *, shrink: bool = False) -> list[ProviderRequest]:
        """Give up a batch that was never run; its requests. With `shrink` they are sent again in smaller batches."""
        requests = list(batch.requests.values())
        in_flight = self._tracker.state.batches
        queued = sum(other.tokens for other in in_flight.values())
        is_alone = len(in_flight) == 1 and len(requests) == 1
        await self._tracker.write({"row": "dropped", "batch": batch.key, "why": reason})
        self._input_path(batch).unlink(missing_ok=True)
        if shrink:
            self._max_queued_tokens = max(1, min(queued, self._max_queued_tokens or queued) // 2)
            logger.info(
                "  %s: its queue is full (%s); from here on at most %d prompt tokens are queued",
                self._provider.name,
                reason,
                self._max_queued_tokens,
            )
            if is_alone:
                # nothing of ours fills the queue: only time helps
                await self._clock.sleep(self._policy.poll_seconds)
            self.submit(requests)
        return requests
