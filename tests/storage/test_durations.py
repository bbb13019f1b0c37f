"""Durations of stages: written beside artifacts, never into them, and only for uninterrupted ones."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from r2v.config import load
from r2v.config.execution import allocated_cpus
from r2v.pipeline.inputs import place_of
from r2v.storage.durations import DURATIONS, Duration, record, recorded
from r2v.storage.integrity import hashed
from tests.trust import MICRO


def one(fingerprint: str = "ab12", seconds: float = 3.0) -> Duration:
    return Duration(job="bc", fingerprint=fingerprint, seconds=seconds, cpu_seconds=2.0, device="cpu", cpus=2)


def test_the_newest_comes_first_and_a_second_attempt_replaces_the_first(tmp_path: Path) -> None:
    for number, made in enumerate((one("ab12"), one("cd34"), one("ef56"))):
        record(tmp_path, made)
        os.utime(tmp_path / DURATIONS / f"bc-{made.fingerprint}.json", (number, number))
    assert [made.fingerprint for made in recorded(tmp_path, "bc")] == ["ef56", "cd34", "ab12"]
    record(tmp_path, one("ab12", 9.0))
    assert recorded(tmp_path, "bc")[0] == one("ab12", 9.0)
    assert recorded(tmp_path, "verifier") == [] == recorded(tmp_path / "elsewhere", "bc")


@pytest.mark.parametrize("text", ["", "[]", '{"job": "bc"}', "altered"])
def test_what_is_damaged_is_passed_over_with_a_line(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path, one())
    path = tmp_path / DURATIONS / "bc-ab12.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 1e9}) if text == "altered" else text)
    assert recorded(tmp_path, "bc") == [] and str(path) in caplog.text


@pytest.mark.parametrize("wrong", [{"seconds": "3"}, {"cpus": None}, {"fingerprint": "../x"}, {"seconds": -1.0}])
def test_what_is_no_duration_is_passed_over_though_its_hash_holds(
    wrong: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / DURATIONS / "bc-ab12.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(hashed({**asdict(one()), **wrong})))
    assert recorded(tmp_path, "bc") == [] and "no duration" in caplog.text


def test_a_disk_that_refuses_it_ends_nothing_and_what_is_no_file_is_no_duration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "outputs").mkdir()
    (tmp_path / DURATIONS).write_text("in the way")
    record(tmp_path, one())
    assert "duration not recorded" in caplog.text and recorded(tmp_path, "bc") == []
    (tmp_path / DURATIONS).unlink()
    (tmp_path / DURATIONS).mkdir()
    (tmp_path / DURATIONS / "bc-1.json").symlink_to("nowhere")
    os.mkfifo(tmp_path / DURATIONS / "bc-2.json")
    (tmp_path / DURATIONS / "bc-3.json").mkdir()
    assert recorded(tmp_path, "bc") == []


def test_a_pipeline_leaves_one_for_each_stage_that_it_made_in_one_go(micro_run: Path) -> None:
    config = load(str(MICRO))
    for job in ("perturb", "bc", "verifier", "candidates", "preference", "router_features", "router", "evaluate"):
        [made] = [
            run
            for run in recorded(micro_run, job)
            if place_of(config, job, micro_run).resolve().name == f"{job}-{run.fingerprint}"
        ]
        assert made.seconds > 0 and made.device == "cpu" and 1 <= made.cpus <= allocated_cpus()
    assert recorded(micro_run, "ablations") == [], "it makes other stages again: its time is none of a stage"
