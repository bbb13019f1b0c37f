"""Was it made? What to do when a create call went out and nobody said what came of it.

Neither SDK sends an idempotency key, so the only answer is the provider's list. OpenAI keeps our key and the input
file's id with a batch. Anthropic keeps nothing of ours: a batch that is newer than what was listed before, with as
many requests, is waited for and known by the custom_ids in its results, which carry the run's nonce.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from r2v.llm.providers.dispatch.dispatch_policy import Plan
from r2v.llm.providers.provider import BatchState, Provider, ProviderFault
from r2v.llm.providers.spending.journal_state import Batch, Book
from r2v.log import logger


@dataclass(frozen=True, kw_only=True)
class Times:
    """The clock: seconds of the epoch, and a sleep that may be a virtual one."""

    now: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


async def newest(provider: Provider) -> str | None:
    """The newest batch that the account lists; None where there is none. Raises ProviderFault."""
    async for state in provider.recent():
        return state.id
    return None


async def find(provider: Provider, batch: Batch, book: Book, plan: Plan, times: Times) -> BatchState | None:
    """The batch that an unconfirmed create call made, or None when it is known that it made none.

    Lists until it is found, or until `reconcile_after` has passed since it could last have been made and no
    candidate is left. Raises ProviderFault only for an account that may not list.
    """
    assert batch.sent_at is not None
    since = batch.sent_at + plan.timeout if batch.unknown_at is None else batch.unknown_at
    quiet = min(since, times.now() + plan.timeout) + plan.reconcile_after
    logger.warning(
        "  batch %s: it is not known whether %s made it; looking for it, for %.0f s at most",
        batch.key,
        provider.name,
        max(0.0, quiet - times.now()),
    )
    strangers: set[str] = set()
    pause = min(5.0, plan.poll_seconds, max(0.05, plan.reconcile_after / 4))
    while True:
        late = times.now() >= quiet
        candidates = await _listed(provider, batch, book, strangers)
        for state in candidates or ():
            verified = await _ours(provider, state, batch)
            if verified:
                logger.warning("  batch %s: it was made, and is %s", batch.key, state.id)
                return state
            if verified is False:
                strangers.add(state.id)
        if candidates is not None and late and all(state.id in strangers for state in candidates):
            logger.warning("  batch %s: it was not made", batch.key)
            return None
        await times.sleep(pause)


async def _listed(provider: Provider, batch: Batch, book: Book, strangers: set[str]) -> list[BatchState] | None:
    """Batches newer than the newest before it was sent that may be it; None where the list can't be had."""
    found = []
    try:
        async for state in provider.recent():
            if state.id == batch.newest:
                break
            if state.id not in book.ids and state.id not in strangers and _alike(provider, state, batch):
                found.append(state)
    except ProviderFault as fault:
        if fault.kind == "account":
            raise
        return None
    return found


def _alike(provider: Provider, state: BatchState, batch: Batch) -> bool:
    if provider.limits.uploads:
        return state.key == batch.key or (batch.file_id is not None and state.input_file == batch.file_id)
    return state.total == batch.count


async def _ours(provider: Provider, state: BatchState, batch: Batch) -> bool | None:
    """Whether a candidate is it; None while that can't be told."""
    if provider.limits.uploads:
        return True
    try:
        state = await provider.look(state.id)
        if not state.done or state.lagging:
            return None
        async for line in provider.lines(state):
            if line.custom_id is not None:
                return line.custom_id in batch.asks
    except ProviderFault as fault:
        return False if fault.status == 404 else None
    return False
