"""What a router's run that was cut need not do again."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.router.thresholds import OperatingPoint
from r2v.stages.train_router import remembering


def test_a_threshold_that_was_played_is_not_played_again(tmp_path: Path) -> None:
    played: list[float] = []

    def execute(tau: float) -> OperatingPoint:
        if tau > 0.5:
            raise KeyboardInterrupt
        played.append(tau)
        return OperatingPoint(llm_call_rate=tau / 3, success=0.1 + 0.2, cost=1e-9)

    before = remembering(tmp_path / "checkpoint-latest.json", execute)
    outcomes = [before(0.1 + 0.2), before(0.25)]
    with pytest.raises(KeyboardInterrupt):
        before(0.75)
    after = remembering(tmp_path / "checkpoint-latest.json", execute)
    assert [after(0.1 + 0.2), after(0.25)] == outcomes and played == [0.1 + 0.2, 0.25]
