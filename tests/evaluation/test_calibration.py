"""Figures of calibration from plays, whichever process played them."""

from __future__ import annotations

import pytest

from r2v.errors import EmptyResult
from r2v.evaluation.calibration import CalibrationPlay, operating_point_of


def test_what_the_world_broke_is_not_counted() -> None:
    plays = [
        CalibrationPlay(task_id="t", steps=4, llm_calls=1, cost=0.5, success=True),
        CalibrationPlay(task_id="t", steps=2, llm_calls=2, cost=1.5, success=False),
        CalibrationPlay(task_id="t", steps=9, llm_calls=9, cost=9.0, success=False, env_fault="gone"),
    ]
    point = operating_point_of(plays)
    assert (point.llm_call_rate, point.cost, point.success) == (0.5, 1.0, 0.5)
    with pytest.raises(EmptyResult, match="all calibration episodes ended"):
        operating_point_of(plays[2:])
