"""The watchdog: a stage is ended by its own pace alone, in the middle of what it counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from r2v.slurm.watchdog import STALL_PATIENCE, stalled

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def events(*steps: tuple[float, int], what: str = "bc", restart: int = 0) -> list[dict[str, Any]]:
    """Events at these seconds, so many done of 100."""
    return [
        {
            "at": (BEGAN + timedelta(seconds=at)).isoformat(),
            "what": what,
            "done": done,
            "total": 100,
            "restart": restart,
        }
        for at, done in steps
    ]


STEADY = events((0, 0), (10, 1), (20, 2), (30, 3), (40, 4))
SLOW = events((0, 0), (1000, 1), (2000, 2), (3000, 3), (4000, 4))


@pytest.mark.parametrize(
    ("told", "after", "hangs"),
    [
        (STEADY, 40 + STALL_PATIENCE - 1, False),
        (STEADY, 40 + STALL_PATIENCE + 1, True),
        (SLOW, 4000 + 9000, False),
        (SLOW, 4000 + 10001, True),
        ([], 1e6, False),
        (STEADY[:3], 1e6, False),
        (events((0, 0), (10, 50), (20, 75), (30, 90), (40, 100)), 1e6, False),
        ([*STEADY, *events((50, 0), what="evaluating")], 1e6, False),
        ([*STEADY, *events((50, 4), restart=1)], 1e6, False),
        (events((0, 0), (1, 1), (2, 2), (3, 3), *((float(at), 4) for at in range(4, 4000, 10))), 4000.0, True),
    ],
)
def test_a_stage_hangs_where_its_own_pace_has_stopped(told: list[dict[str, Any]], after: float, hangs: bool) -> None:
    restart = told[-1]["restart"] if told else 0
    found = stalled(told, restart, BEGAN + timedelta(seconds=after))
    assert bool(found) == hangs
    assert not hangs or "its longest step took" in str(found)
