"""A configuration beside results stands there as R2V writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.config import load, to_yaml
from r2v.evaluation.audit.verify import config_problems


def test_what_r2v_writes_has_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(load(None, ["training.lr=1e-5", "teacher.max_usd=3"])))
    assert list(config_problems(path)) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("hierarchical: {enabled: 'yes'}", "hierarchical.enabled is 'yes', R2V writes True"),
        ("training: {num_epochs: '3'}", "training.num_epochs is '3', R2V writes 3.0"),
        ("data: {seeds: ['1']}", "data.seeds[0] is '1', R2V writes 1"),
    ],
)
def test_what_a_lenient_reader_converts_is_named(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert list(config_problems(path)) == [named]
