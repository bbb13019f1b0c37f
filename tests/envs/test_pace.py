"""The pace that benchmarks state, and its source."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from r2v.envs.base import BENCHMARKS, load_benchmark
from r2v.envs.pace import PACES, UNDECLARED, Pace, pace_of
from r2v.errors import UsageError


def test_a_declaration_comes_before_a_name_and_a_name_before_an_assumption() -> None:
    own = Pace(step_seconds=7)
    assert pace_of("webarena", SimpleNamespace(pace=own)) is own
    assert pace_of("webarena", None) is PACES["webarena"] and pace_of("shop:Shop", None) is UNDECLARED
    assert pace_of("desk", load_benchmark("desk")).teacher_steps == 5.2
    with pytest.raises(UsageError, match=r"pace is 3; expected an r2v.envs.pace.Pace"):
        pace_of("shop:Shop", SimpleNamespace(pace=3))


def test_what_is_declared_by_name_is_a_benchmark() -> None:
    assert set(PACES) <= set(BENCHMARKS)


def test_each_value_has_its_basis_and_measured_ones_replace_declared_ones() -> None:
    lines = UNDECLARED.lines()
    assert len(lines) == 1 and lines[0].startswith("assumed: reset_seconds 1, step_seconds 1")
    found = PACES["webarena"].measured("measured in run x", teacher_steps=9.5)
    assert found.teacher_steps == 9.5 and found.step_seconds == 1.5
    assert "measured in run x: teacher_steps 9.5" in found.lines()
    assert any(line.startswith("measured on stub sites") and "reset_seconds 7" in line for line in found.lines())
    assert Pace(step_seconds=2).lines()[0].startswith("declared by the benchmark: ")
