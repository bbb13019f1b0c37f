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


OLD = '[[0.5, {"llm_call_rate": 0.9, "success": 0.9, "cost": 0.9}]]'


@pytest.mark.parametrize("text", ["", "[]", OLD, "null", "folder", f'{{"plays": {OLD}, "sha256": "0"}}'])
def test_plays_that_are_damaged_are_played_again(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, played = tmp_path / "checkpoint-latest.json", list[float]()
    if text != "folder":
        path.write_text(text)

    def execute(tau: float) -> OperatingPoint:
        played.append(tau)
        return OperatingPoint(llm_call_rate=tau, success=0.1, cost=1.0)

    for _ in range(2):
        assert remembering(path, execute)(0.5).llm_call_rate == 0.5
    assert played == [0.5] and (text == "folder" or str(path) in caplog.text)
    path.write_text(path.read_text().replace('"success": 0.1', '"success": 0.9'))
    assert remembering(path, execute)(0.5).success == 0.1 and played == [0.5, 0.5]
