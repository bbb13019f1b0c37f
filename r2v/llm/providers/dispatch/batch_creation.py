"""Batch creation: the steps from a journaled intent to a batch that is created exactly once.

Every step is journaled before it is taken. An ambiguous failure is followed by reconciliation, not by another create
call. Neither SDK sends an idempotency key, so the only evidence is the provider's list of batches. OpenAI lists R2V's
key and the input file's id with a batch. Anthropic lists neither: each batch newer than the newest one before the call
is awaited, and then recognised by the custom_ids in its results, which hold a nonce. Its counts prove nothing:
excluding our own batch by a wrong sum would pay for it twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, WallClock
from r2v.llm.providers.provider import BatchProvider, BatchState, KeepsFiles, ProviderFault
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.providers.spending.journal_state import JournalBatch, JournalState
from r2v.log import logger


class BatchCreation:
    """Creation of the batches of one run. input_path: path of a batch's input file."""

    def __init__(
        self,
        provider: BatchProvider,
        tracker: SpendTracker,
        policy: DispatchPolicy,
        clock: WallClock,
        input_path: Callable[[JournalBatch], Path],
    ) -> None:
        self._provider, self._tracker, self._policy, self._clock = provider, tracker, policy, clock
        self._input_path = input_path
        self._in_flight: set[asyncio.Task[None]] = set()
        """Create calls whose outcome is not yet journaled."""

    async def attempt(self, batch: JournalBatch) -> None:
        """Take the remaining steps from intent to created. Raise ProviderFault if the batch was not created, or if that
        is unknown: `batch.sent_at` is then set, and the next attempt looks for the batch."""
        key = {"batch": batch.key}
        if batch.sent_at is not None:
            created = await find_created_batch(self._provider, batch, self._tracker.state, self._policy, self._clock)
            if created is not None:
                await self._tracker.write({"row": "created", **key, "id": created.id})
                return
            await self._tracker.write({"row": "absent", **key, "why": "not listed"})
        if self._provider.limits.uploads and batch.file_id is None:
            file_id = await self._provider.upload(self._input_path(batch))
            await self._tracker.write({"row": "file", **key, "id": file_id})
        # A shielded task of its own: a run that stops cancels the dispatcher's tasks, but a create call cut short
        # between `sending` and `created` would leave the next run to look for the batch.
        newest = await newest_batch_id(self._provider)
        creating = asyncio.get_running_loop().create_task(self._create(batch, newest))
        self._in_flight.add(creating)
        creating.add_done_callback(self._on_done)
        await asyncio.shield(creating)

    async def _create(self, batch: JournalBatch, newest: str | None) -> None:
        write, key = self._tracker.write, {"batch": batch.key}
        await write({"row": "sending", **key, "at": self._clock.now(), "newest": newest})
        try:
            state = await self._provider.create_batch(batch.key, self._input_path(batch), batch.file_id)
        except ProviderFault as fault:
            if fault.ambiguous:
                await write({"row": "unknown", **key, "at": self._clock.now(), "why": fault.reason})
            else:
                await write({"row": "absent", **key, "why": fault.reason})
            raise
        await write({"row": "created", **key, "id": state.id})

    def _on_done(self, creating: asyncio.Task[None]) -> None:
        self._in_flight.discard(creating)
        if not creating.cancelled():
            creating.exception()  # retrieve it: asyncio logs unretrieved errors, and the awaiting task may be cancelled

    async def tidy(self, batch: JournalBatch) -> None:
        """Delete the input file of an applied batch, here and at the provider."""
        self._input_path(batch).unlink(missing_ok=True)
        if batch.file_id is None or not isinstance(self._provider, KeepsFiles):
            return
        try:
            await self._provider.delete_file(batch.file_id)
        except ProviderFault as fault:  # storage is free, and the provider deletes it after a month
            logger.debug("  input file not deleted: batch=%s file=%s reason=%s", batch.key, batch.file_id, fault.reason)

    async def drain(self, grace: float) -> None:
        """Wait up to `grace` seconds for create calls in flight, so that the next run need not look for their batches.
        Later ones are cancelled, because the journal is about to be closed."""
        if not self._in_flight:
            return
        logger.info(
            "  stopping; waiting for the ids of new batches: provider=%s model=%s batches=%d at_most=%.0fs",
            self._provider.name,
            self._tracker.rate.model,
            len(self._in_flight),
            grace,
        )
        _, late = await asyncio.wait(self._in_flight, timeout=grace)
        for creating in late:
            creating.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def is_queue_full(fault: ProviderFault) -> bool:
    """True if the provider refused a batch because the account's queue is full."""
    # no single code: OpenAI sends token_limit_exceeded or an enqueued limit, Anthropic request_too_large
    message = f"{fault.code} {fault.reason}".lower()
    return fault.status in (400, 413, 429) and any(
        word in message for word in ("token_limit", "enqueued", "queue", "request_too_large")
    )


async def newest_batch_id(provider: BatchProvider) -> str | None:
    """Return the id of the newest batch in the account's list; None for an empty list. Raise ProviderFault."""
    async for state in provider.list_batches():
        return state.id
    return None


async def find_created_batch(
    provider: BatchProvider, batch: JournalBatch, state: JournalState, policy: DispatchPolicy, clock: WallClock
) -> BatchState | None:
    """Return the batch that an unconfirmed create call created, or None if it surely created none.

    List batches until it is found, or until `reconcile_after` has passed since it could last have been created and no
    candidate is left. Raise ProviderFault only for an account that may not list.
    """
    assert batch.sent_at is not None
    # a call cut off by the death of its process may be carried out until its timeout
    last_possible = batch.sent_at + policy.timeout if batch.unknown_at is None else batch.unknown_at
    # bounded by now: another machine's clock may have journaled a time in the future
    deadline = min(last_possible, clock.now() + policy.timeout) + policy.reconcile_after
    logger.warning(
        "  batch unconfirmed; searching the provider's list: batch=%s provider=%s at_most=%.0fs",
        batch.key,
        provider.name,
        max(0.0, deadline - clock.now()),
    )
    foreign: set[str] = set()
    is_logged = False
    pause = min(5.0, policy.poll_seconds, max(0.05, policy.reconcile_after / 4))
    while True:
        # read before listing, so that the last list is made after the deadline
        is_late = clock.now() >= deadline
        candidates = await _list_candidates(provider, batch, state, foreign)
        for candidate in candidates or ():
            is_ours = await _is_ours(provider, candidate, batch)
            if is_ours:
                logger.warning("  batch found: batch=%s id=%s", batch.key, candidate.id)
                return candidate
            if is_ours is False:
                foreign.add(candidate.id)
        if candidates and is_late and not is_logged:
            is_logged = True
            logger.warning(
                "  waiting for running batches, whose results show which is ours: batch=%s candidates=%d",
                batch.key,
                len(candidates),
            )
        if candidates is not None and is_late and all(candidate.id in foreign for candidate in candidates):
            logger.warning("  batch not listed, so never created; sending it again: batch=%s", batch.key)
            return None
        await clock.sleep(pause)


async def _list_candidates(
    provider: BatchProvider, batch: JournalBatch, state: JournalState, foreign: set[str]
) -> list[BatchState] | None:
    """Return the batches listed since the create call that may be this one; None if listing failed."""
    candidates, reached_newest = [], batch.newest is None
    try:
        async for listed in provider.list_batches():
            if listed.id == batch.newest:
                reached_newest = True
                break
            if listed.id not in state.batch_ids and listed.id not in foreign and _could_be(provider, listed, batch):
                candidates.append(listed)
    except ProviderFault as fault:
        if fault.kind == "account":
            raise
        return None  # a partial list proves nothing; the next one is complete
    if not reached_newest:  # it was deleted meanwhile, so the list holds the whole history of the account
        candidates = [listed for listed in candidates if provider.limits.uploads or listed.total == batch.count]
    return candidates


def _could_be(provider: BatchProvider, listed: BatchState, batch: JournalBatch) -> bool:
    if provider.limits.uploads:
        return listed.key == batch.key or (batch.file_id is not None and listed.input_file == batch.file_id)
    return True


async def _is_ours(provider: BatchProvider, candidate: BatchState, batch: JournalBatch) -> bool | None:
    """Return True if a candidate is this batch; None while that is unknown."""
    if provider.limits.uploads:
        return True
    try:
        state = await provider.retrieve_batch(candidate.id)
        if not state.done or state.lagging:
            return None
        async for line in provider.results(state):
            if line.custom_id is not None:
                return line.custom_id in batch.requests
    except ProviderFault as fault:
        return False if fault.status == 404 else None
    return False
