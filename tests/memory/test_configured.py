"""The memory plan, compared with the bytes of the real trainer, phase by phase; benchmarks/hrl_memory.py has 40
cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hrl_memory import compared, drawn


@pytest.mark.parametrize("number", [1])
def test_the_plan_is_what_rollout_advantages_and_updates_take(number: int, tmp_path: Path) -> None:
    [(_, case)] = drawn([number], 18, tmp_path)
    for phase, (planned, tracked) in compared(case, tmp_path / "run").items():
        assert -0.03 < planned / tracked - 1 < 0.05, (phase, planned, tracked)
