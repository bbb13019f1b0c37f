"""The figures in a run's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.errors import InputError
from r2v.experiments.metrics import headline, metric_of, metrics_of, outcomes_of


def test_figures_are_those_of_the_end_or_of_the_last_line(tmp_path: Path) -> None:
    assert metrics_of(tmp_path) == {} and outcomes_of(tmp_path) == {}
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2}\n{"step": 2, "loss": 1.5}\n')
    assert metrics_of(tmp_path) == {"step": 2, "loss": 1.5}
    (tmp_path / "metrics.json").write_text('{"bc": {"noisy": {"success": 0.5}}, "note": "x", "flag": true}')
    assert metrics_of(tmp_path) == {"bc.noisy.success": 0.5}
    assert metric_of(tmp_path, "bc.noisy.success") == 0.5
    assert headline(tmp_path, None) == "bc.noisy.success=0.5"
    with pytest.raises(InputError, match="did you mean bc.noisy.success"):
        metric_of(tmp_path, "bc.noisy.sucess")


def test_damaged_figures_are_named(tmp_path: Path) -> None:
    for text in ("", "{", "[]", "3"):
        (tmp_path / "metrics.json").write_text(text)
        with pytest.raises(InputError, match=r"metrics\.json"):
            metrics_of(tmp_path)
    (tmp_path / "outcomes.csv").write_text("unit,value\na,x\n")
    with pytest.raises(InputError, match=r"outcomes\.csv"):
        outcomes_of(tmp_path)
