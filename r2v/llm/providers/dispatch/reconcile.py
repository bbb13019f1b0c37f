"""Reconciliation: whether a create call without an answer has created a batch.

Neither SDK sends an idempotency key, so the only evidence is the provider's list of batches. OpenAI lists R2V's key and
the input file's id with a batch. Anthropic lists neither: each batch newer than the newest one before the call is
awaited, and then recognised by the custom_ids in its results, which hold a nonce. Its counts prove nothing: excluding
our own batch by a wrong sum would pay for it twice.
"""

from __future__ import annotations

from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.result_handler import WallClock
from r2v.llm.providers.provider import BatchProvider, BatchState, ProviderFault
from r2v.llm.providers.spending.journal_state import JournalBatch, JournalState
from r2v.log import logger


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
