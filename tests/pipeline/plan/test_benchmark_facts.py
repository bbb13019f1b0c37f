"""Facts about a benchmark: from itself, from its declaration, or from measurements of earlier runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2v.config import load
from r2v.data.split import assign
from r2v.envs.base import load_benchmark
from r2v.envs.desk import Desk
from r2v.pipeline.plan.benchmark_facts import facts_here, facts_of
from r2v.pipeline.run import run_here
from tests.pipeline.test_run import LATER, small


def test_a_benchmark_of_ours_is_asked() -> None:
    known = facts_here(load(None))
    splits = list(assign(Desk().tasks()).values())
    assert dict(known.tasks) == {name: splits.count(name) for name in known.tasks} and sum(known.tasks.values()) == 1360
    assert known.copies and known.listed
    assert known.of_split("heldout", None) == 60 and known.of_split("heldout", 7) == 7


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def test_one_that_is_not_there_is_estimated(nothing_installed: None) -> None:
    known = facts_here(load("configs/webarena/noisy.yaml"))
    assert dict(known.tasks) == {"train": 568, "calibration": 81, "evaluation": 163, "heldout": 0}
    assert not known.copies and not known.listed


def test_of_one_that_is_not_there_the_declared_share_changes_shared_worlds(nothing_installed: None) -> None:
    known = facts_here(load("configs/webarena/noisy.yaml"))
    assert known.changing == sum(int(count * 374 / 812) for count in known.tasks.values())
    assert known.branched_of_split("train", None) == 568 - int(568 * 374 / 812)
    assert known.branched_of_split("train", 2) == 2 and known.branched_of_split("train", 3) == 2
    assert facts_here(load("configs/swebench/noisy.yaml")).changing == 0


def test_what_a_run_has_measured_comes_first(tmp_path: Path) -> None:
    config = small()
    run_here(config, without=LATER, root=tmp_path)
    log = next((tmp_path / "data/runs").glob("*/collection_log.jsonl"))
    lengths = [json.loads(line)["n_steps"] for line in log.read_text().splitlines()]
    pace = facts_here(config, tmp_path).pace
    assert pace.teacher_steps == pytest.approx(sum(lengths) / len(lengths))
    assert pace.why("teacher_steps").startswith("measured in run ") and pace.why("differing") == "assumed"
    folder = tmp_path / "data/router_features/desk_noisy"
    folder.mkdir(parents=True)
    (folder / "artifact.json").write_text("{}")  # no artifact: the declared pace stays
    assert facts_here(config, tmp_path).pace == pace
    log.write_text("no JSON")
    asked = load_benchmark(config.env.benchmark, config.env.options)
    assert facts_here(config, tmp_path).pace == facts_of(config, asked).pace
