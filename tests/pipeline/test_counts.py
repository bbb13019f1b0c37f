"""A count above what there is plays all there is and says so; none at all is refused before anything is begun."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import load
from r2v.errors import UsageError
from r2v.pipeline.counts import fewer_than_asked
from r2v.pipeline.inputs import published
from r2v.pipeline.jobs import job

CHAIN = ["env.benchmark=chain", "env.options={num_tasks: 40, length: 2}", "data.seeds=[1]"]


def test_a_count_above_what_there_is_is_said_and_kept(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("r2v"), "propagate", True)
    config = load(None, [*CHAIN, "data.num_episodes=99999999999", "evaluation.num_tasks=100000"])
    with caplog.at_level(logging.INFO, "r2v"):
        [(key, counts)] = fewer_than_asked(config, job("collect")).items()
    assert key == "data.num_episodes" and counts["asked"] == 99999999999 and 0 < counts["played"] < 40
    [line] = set(caplog.messages)
    assert f"data.num_episodes=99999999999: chain has {counts['played']} tasks in the train split" in line
    assert list(fewer_than_asked(config, job("evaluate"))) == ["evaluation.num_tasks"]


def test_a_count_that_can_be_had_and_none_say_nothing() -> None:
    config = load(None, [*CHAIN, "data.num_episodes=3", "router.num_tasks=2", "router.num_calibration_tasks=1"])
    assert fewer_than_asked(config, job("collect")) == {}
    assert fewer_than_asked(config, job("evaluate")) == {}
    assert fewer_than_asked(config, job("router_features")) == {}
    assert fewer_than_asked(config, job("bc")) == {}


def test_the_artifact_keeps_both_numbers_and_its_content_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["collect", "--overrides", *CHAIN]
    assert main([*words, "data.num_episodes=100000"]) == 0
    assert "all of them are played" in capsys.readouterr().err
    found = published(load(None, [*CHAIN, "data.num_episodes=100000"]), "collect")
    assert found.summary["fewer_than_asked"]["data.num_episodes"]["asked"] == 100000
    assert main(words) == 0
    assert "fewer_than_asked" not in published(load(None, CHAIN), "collect").summary


@pytest.mark.parametrize("options", ["{num_tasks: 0}", "{num_tasks: 1}", "{num_tasks: -5}", "{num_tasks: many}"])
@pytest.mark.parametrize("benchmark", ["desk", "chain"])
def test_no_task_to_play_is_refused_before_a_run_is_begun(
    options: str, benchmark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["collect", "--overrides", f"env.benchmark={benchmark}", f"env.options={options}", "data.split_seed=0"])
    err = capsys.readouterr().err
    if code == 0:  # its one task happens to be for training
        assert options == "{num_tasks: 1}"
        return
    assert code == 2 and "env.options" in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_options_outside_their_range_are_named() -> None:
    for options in ("{num_tasks: 30, p_easy: 2}", "{length: 0}", "{hard: 11}", "{p_hard: -1}"):
        with pytest.raises(UsageError, match=r"env.options\.\w+ must be in"):
            fewer_than_asked(load(None, ["env.benchmark=chain", f"env.options={options}"]), job("collect"))
