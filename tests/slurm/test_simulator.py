"""The simulated Slurm replays the recorded traces of a real one."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.slurm.client.command import through
from tests.slurm.traces import SCENARIOS, Replay, recorded, trace


def test_every_scenario_was_recorded() -> None:
    assert [one["name"] for one in recorded()] == list(SCENARIOS) and len(SCENARIOS) >= 20


@pytest.mark.parametrize("real", recorded(), ids=lambda real: real["name"])
def test_a_trace_of_the_real_cluster_is_replayed_with_equal_states(real: dict[str, Any]) -> None:
    bed = Replay()
    with through(bed.slurm):
        assert trace(real["name"], SCENARIOS[real["name"]], bed) == real
