"""Batch polling: wait for a provider batch to end."""

from __future__ import annotations

from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.dispatch.result_handler import WallClock, account_error
from r2v.llm.providers.provider import BatchProvider, BatchState, ProviderFault
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.providers.spending.journal_state import JournalBatch
from r2v.log import logger
from r2v.randomness import uniform

_GROWTH, _LONGEST_POLL = 1.1, 20
"""Polls grow apart by this factor, up to so many times the first pause: about a twentieth of a wait is lost."""
_LAGGING_POLLS = 10
"""Polls of a batch that is done before its missing files count as missing: at OpenAI the file id may follow the status
by a few seconds."""


async def wait_until_done(
    provider: BatchProvider,
    batch: JournalBatch,
    tracker: SpendTracker,
    policy: DispatchPolicy,
    clock: WallClock,
    outage: Outage,
) -> BatchState:
    """Poll, at growing and jittered intervals, until the batch has ended. Raises EnvironmentFault where the provider no
    longer knows it."""
    assert batch.id is not None
    polls, lagging, pause, last_state = 0, 0, policy.poll_seconds, ""
    while True:
        await outage.over()
        state = await _poll(provider, batch.id, outage)
        if state is not None and state.done:
            lagging += state.lagging
            if not state.lagging or lagging > _LAGGING_POLLS:
                if not batch.ended:
                    await tracker.write({"row": "ended", "batch": batch.key, "state": state.state})
                return state
        elif state is not None and state.state != last_state:
            last_state = state.state
            logger.debug("  batch %s: %s", batch.id, last_state)
        polls += 1
        tracker.notify()
        await clock.sleep(pause * (0.8 + 0.4 * uniform("poll", batch.key, polls)))
        pause = min(_GROWTH * pause, _LONGEST_POLL * policy.poll_seconds)


async def _poll(provider: BatchProvider, batch_id: str, outage: Outage) -> BatchState | None:
    """The batch's state; None where the poll failed for a passing reason."""
    try:
        state = await provider.retrieve_batch(batch_id)
        outage.answered()
        return state
    except ProviderFault as fault:
        outage.failed(fault)
        if fault.kind == "account":
            raise account_error(provider.name, fault.reason) from None
        if fault.status == 404:
            raise EnvironmentFault(
                f"batch {batch_id}: the provider does not know it any more: {fault.reason}; "
                "its answers can't be had: start a new run, which pays anew"
            ) from None
        return None
