"""A trained policy is accepted for executed success alone."""

from __future__ import annotations

import math

import pytest

from r2v.data.episode import Condition
from r2v.evaluation.acting.acceptance import Rule, verdict_of
from r2v.evaluation.calibration import CalibrationPlay, successes

NOISY: Condition = "noisy"


@pytest.mark.parametrize(
    ("won", "lost", "rule", "accepted"),
    [
        (12, 0, "interval", True),
        (2, 1, "interval", False),
        (2, 1, "higher", True),
        (1, 1, "higher", False),
        (0, 0, "interval", False),
        (0, 0, "higher", False),
        (0, 9, "higher", False),
    ],
)
def test_what_no_success_speaks_for_is_thrown_away(won: int, lost: int, rule: Rule, accepted: bool) -> None:
    """Of 40 tasks, so many that only the trained policy solves and so many that only the cloned one does."""
    names = [f"t{index}" for index in range(40)]
    cloned = {name: float(won <= index < won + lost) for index, name in enumerate(names)}
    trained = {name: float(index < won) for index, name in enumerate(names)}
    verdict = verdict_of(cloned, trained, rule)
    assert verdict.accepted is accepted
    assert verdict.difference == pytest.approx((won - lost) / 40)
    assert verdict.summary()["n_tasks"] == 40
    spread = math.sqrt((won + lost - (won - lost) ** 2 / 40) / 39)
    if spread:  # 80 % power at the level of 95 %: 1.960 + .842 standard errors
        assert verdict.detectable == pytest.approx(2.8016 * spread / math.sqrt(40), rel=1e-4)
        assert f"minimum detectable effect {verdict.detectable:.3f}" in str(verdict)
    else:
        assert verdict.detectable is None and "all tasks alike" in str(verdict)


def test_a_task_counts_its_seeds_and_no_fault_of_the_world() -> None:
    plays = [
        CalibrationPlay(task_id=task, steps=1, llm_calls=0, cost=0.0, success=success, env_fault=fault)
        for task, success, fault in (
            ("a", True, None),
            ("a", False, None),
            ("b", True, None),
            ("c", False, "the site answered 500"),
        )
    ]
    assert successes(plays) == {"a": 0.5, "b": 1.0}
    assert verdict_of({"a": 0.5, "b": 1.0}, {"b": 1.0, "c": 1.0}, "higher").n_tasks == 1
