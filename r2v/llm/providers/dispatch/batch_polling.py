"""Batch polling: wait for a provider batch to end, at intervals that follow from how long the last ones took."""

from __future__ import annotations

import statistics
from collections import deque

from r2v.console import duration
from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.dispatch.result_handler import WallClock, account_error
from r2v.llm.providers.provider import BatchProvider, BatchState, ProviderFault
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.providers.spending.journal_state import JournalBatch
from r2v.log import logger
from r2v.randomness import uniform
from r2v.storage.record import wait

_TOLD_FROM, _WINDOW = 60.0, 86_400.0
"""Seconds after which a wait is recorded, and within which a provider answers a batch where it does not say."""
_SHARE = 0.005
"""Polls of a batch are as far apart as this share of the time waited, so that a quarter of a percent of it is lost."""
_POLLED_TOGETHER = 5
"""So many polls of all batches fall into `poll_seconds`, at most: by default 30 a minute, where Anthropic's lowest tier
allows 50 requests."""
USUAL_WAIT = 1200.0
"""Seconds that a batch takes, where none has ended yet."""
_LEARNED, _REMEMBERED = 3, 21
"""Batches that have ended before the shortest of their times is relied on, and those that are remembered."""
_LAGGING_POLLS = 10
"""Polls of a batch that is done before its missing files count as missing: at OpenAI the file id may follow the status
by a few seconds."""


class BatchWaits:
    """How long the last batches took, in seconds."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, seconds: float) -> None:
        """One has ended."""
        self._last.append(seconds)

    @property
    def typical(self) -> float:
        """The median."""
        return statistics.median(self._last) if self._last else USUAL_WAIT

    @property
    def soonest(self) -> float:
        """Before that, none is done."""
        return min(self._last) / 2 if len(self._last) >= _LEARNED else 0.0


async def wait_until_done(
    provider: BatchProvider,
    batch: JournalBatch,
    tracker: SpendTracker,
    policy: DispatchPolicy,
    clock: WallClock,
    outage: Outage,
    soonest: float = 0.0,
) -> BatchState:
    """Poll, at growing and jittered intervals, until the batch has ended; for the first time `soonest` seconds after it
    was created. Raises EnvironmentFault where the provider no longer knows it."""
    assert batch.id is not None
    polls, lagging, last_state, began, told = 0, 0, "", clock.now(), False
    if not batch.ended:
        await clock.sleep(max(0.0, min(soonest, batch.began + soonest - began)))
    while True:
        await outage.over()
        state = await _poll(provider, batch.id, outage)
        if state is not None and state.done:
            lagging += state.lagging
            if not state.lagging or lagging > _LAGGING_POLLS:
                if not batch.ended:
                    await tracker.write({"row": "ended", "batch": batch.key, "state": state.state})
                if told:
                    wait(f"batch {batch.id}", None)
                return state
        elif state is not None:
            if state.state != last_state:
                last_state = state.state
                logger.debug("  batch %s: %s", batch.id, last_state)
            _require_window(state, clock.now(), policy)
            if not told and clock.now() - began >= _TOLD_FROM:
                told, ends = True, state.expires or batch.began + _WINDOW
                wait(f"batch {batch.id}", f"{len(batch.requests)} requests", ends + policy.outage_seconds)
        polls += 1
        tracker.notify()
        pause = pause_of(clock.now() - began, len(tracker.state.batches), policy)
        await clock.sleep(pause * (0.8 + 0.4 * uniform("poll", batch.key, polls)))


def _require_window(state: BatchState, now: float, policy: DispatchPolicy) -> None:
    """Raise EnvironmentFault for a batch that goes on long after its window."""
    late = 0.0 if state.expires is None else now - state.expires
    if late > policy.outage_seconds:
        raise EnvironmentFault(
            f"batch {state.id}: is {state.state} still, {duration(late)} after its window has ended; run the same "
            f"command later, or give it up alone by `r2v providers forget {state.id}`, which pays for its requests anew"
        )


def pause_of(waited: float, in_flight: int, policy: DispatchPolicy) -> float:
    """Seconds to the next poll of a batch that was waited for `waited` seconds, one of `in_flight` batches."""
    return max(policy.poll_seconds * max(1.0, in_flight / _POLLED_TOGETHER), _SHARE * waited)


async def _poll(provider: BatchProvider, batch_id: str, outage: Outage) -> BatchState | None:
    """The batch's state; None where the poll failed for a passing reason."""
    try:
        state = await provider.retrieve_batch(batch_id)
        outage.answered()
        return state
    except ProviderFault as fault:
        outage.failed(fault)
        if fault.status == 404:
            raise EnvironmentFault(
                f"batch {batch_id}: the provider does not know it any more: {fault.reason}; its answers can't be had: "
                f"give it up alone by `r2v providers forget {batch_id}`, then run the same command again"
            ) from None
        if fault.kind == "account":
            raise account_error(provider.name, fault.reason) from None
        return None
