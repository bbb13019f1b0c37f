"""The watchdog: whether a stage whose own pace has stopped should be ended; it asks nothing but the stage's events.

A rank that hangs in a collective, or a disk that answers no more, holds its GPUs to the time limit otherwise. What a
stage does takes as long as it takes: the measure is its own longest step so far, and nothing below half an hour counts.
Who waits for a provider, and has recorded until when, does not hang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

STALL_PATIENCE = 1800.0
"""Seconds without an event that no stage is ended for."""
TIMES_LONGEST = 10.0
"""How many times its longest step so far a step may take."""
_STEPS = 3
"""Steps that a stage must have made before it has a pace."""


def stalled(events: Sequence[Mapping[str, Any]], restart: int, now: datetime) -> str | None:
    """Why a stage is taken to hang, in one line; None where it is not. Only the middle of what it counts is watched:
    before its first steps and after its last it loads and saves for as long as that takes."""
    if not events:
        return None
    what, done, total = (events[-1].get(key) for key in ("what", "done", "total"))
    times, counts = list[datetime](), set[Any]()
    for event in events:
        if event.get("what") == what and event.get("restart", 0) == restart and event.get("done") not in counts:
            counts.add(event.get("done"))
            times.append(datetime.fromisoformat(str(event["at"])))
    if len(times) <= _STEPS or not done or done == total:
        return None
    longest = max((after - before).total_seconds() for before, after in zip(times, times[1:], strict=False))
    still = (now - times[-1]).total_seconds()
    if still < max(STALL_PATIENCE, TIMES_LONGEST * longest):
        return None
    return (
        f"{what} stands at {done} of {total} for {still / 60:.0f} minutes, its longest step took {longest:.0f} s; "
        "ended by its watchdog"
    )
