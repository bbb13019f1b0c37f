"""Batch polling: wait for a provider batch to end, at intervals that grow with the time waited."""

from __future__ import annotations

import statistics
from collections import deque

from r2v.console import duration
from r2v.errors import EnvironmentFault
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, WallClock, account_error
from r2v.llm.providers.dispatch.outage import Outage
from r2v.llm.providers.provider import BatchProvider, BatchState, ProviderFault
from r2v.llm.providers.spending.budget import SpendTracker
from r2v.llm.providers.spending.journal_state import JournalBatch
from r2v.log import logger
from r2v.randomness import uniform
from r2v.storage.record import wait

_RECORD_FROM, _WINDOW = 60.0, 86_400.0
"""Seconds after which a wait is recorded, and the window of a batch whose provider states none."""
_SHARE = 0.005
"""Interval between polls as a share of the time waited, so that on average a quarter of a percent of it is lost."""
_POLLED_TOGETHER = 5
"""Most polls of all batches within `poll_seconds`: by default 30 per minute, where Anthropic's lowest tier allows 50
requests."""
USUAL_WAIT = 1200.0
"""Assumed seconds of a batch before one has ended."""
_LEARNED, _REMEMBERED = 3, 21
"""Number of ended batches before their shortest time is used, and number of remembered times."""
_LAGGING_POLLS = 10
"""Polls of a finished batch before its files count as missing: at OpenAI a file id may follow the status by a few
seconds."""


class BatchWaits:
    """Times of the last batches in seconds."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, seconds: float) -> None:
        """Add the time of a batch that has ended."""
        self._last.append(seconds)

    @property
    def typical(self) -> float:
        """The median time; `USUAL_WAIT` before a batch has ended."""
        return statistics.median(self._last) if self._last else USUAL_WAIT

    @property
    def soonest(self) -> float:
        """Time before which no batch is expected to end: half the shortest; 0 after few batches."""
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
    """Poll a batch at growing, jittered intervals until it has ended, first `soonest` seconds after its creation. Raise
    EnvironmentFault if the provider no longer has it, or it runs long past its window."""
    assert batch.id is not None
    polls, lagging, last_state, began, is_recorded = 0, 0, "", clock.now(), False
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
                if is_recorded:
                    wait(f"batch {batch.id}", None)
                return state
        elif state is not None:
            if state.state != last_state:
                last_state = state.state
                logger.debug("  batch changed: batch=%s state=%s", batch.id, last_state)
            _require_window(state, clock.now(), policy)
            if not is_recorded and clock.now() - began >= _RECORD_FROM:
                is_recorded, ends = True, state.expires or batch.began + _WINDOW
                wait(f"batch {batch.id}", f"{len(batch.requests)} requests", ends + policy.outage_seconds)
        polls += 1
        tracker.notify()
        # jitter: batches created together would otherwise be polled together for good
        pause = pause_of(clock.now() - began, len(tracker.state.batches), policy)
        await clock.sleep(pause * (0.8 + 0.4 * uniform("poll", batch.key, polls)))


def _require_window(state: BatchState, now: float, policy: DispatchPolicy) -> None:
    """Raise EnvironmentFault for a batch that runs long past its window."""
    late = 0.0 if state.expires is None else now - state.expires
    if late > policy.outage_seconds:
        raise EnvironmentFault(
            f"batch {state.id}: is still {state.state}, {duration(late)} after its window has ended; run the same "
            f"command later, or give it up alone by `r2v providers forget {state.id}`, which pays for its requests anew"
        )


def pause_of(waited: float, in_flight: int, policy: DispatchPolicy) -> float:
    """Return the seconds to the next poll of one of `in_flight` batches, after `waited` seconds."""
    return max(policy.poll_seconds * max(1.0, in_flight / _POLLED_TOGETHER), _SHARE * waited)


async def _poll(provider: BatchProvider, batch_id: str, outage: Outage) -> BatchState | None:
    """Return the batch's state; None after a transient failure. Raise EnvironmentFault for a permanent one."""
    try:
        state = await provider.retrieve_batch(batch_id)
        outage.answered()
        return state
    except ProviderFault as fault:
        outage.failed(fault)
        if fault.status == 404:
            raise EnvironmentFault(
                f"batch {batch_id}: the provider no longer has it: {fault.reason}; its answers are lost: "
                f"give it up alone by `r2v providers forget {batch_id}`, then run the same command again"
            ) from None
        if fault.kind == "account":
            raise account_error(provider.name, fault.reason) from None
        return None
