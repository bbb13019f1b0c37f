"""`r2v status`, `logs` and `cost` show a local run in this folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.log import logger
from r2v.pipeline.local_run import recorded_run


@pytest.fixture(autouse=True)
def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "r2v")
    monkeypatch.chdir(tmp_path)
    with recorded_run(tmp_path, "mrp", ["collect", "bc"]) as run:
        with run.stage("collect"):
            logger.info("two episodes")
        with pytest.raises(ValueError), run.stage("bc"):
            raise ValueError("no rows")


def test_status_tells_each_stage_and_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 1
    told = capsys.readouterr().out
    assert "mrp (here, begun " in told and "): failed, 1 of 2 stages made" in told
    assert "no rows" in told and "r2v logs mrp STAGE" in told
    assert main(["status", "mrp", "--json"]) == 1
    (run,) = json.loads(capsys.readouterr().out)["local"]
    assert (run["state"], run["exit_code"], run["stages"][0]["state"]) == ("failed", 1, "done")


def test_a_running_one_is_active(capsys: pytest.CaptureFixture[str]) -> None:
    with recorded_run(Path(), "other", ["bc"]) as run, run.stage("bc"):
        assert main(["status", "other"]) == 10
    assert "running, 0 of 1 stages made" in capsys.readouterr().out
    assert main(["status", "other"]) == 0


def test_logs_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "collect"]) == 0
    assert capsys.readouterr().out == "two episodes\n"
    assert main(["logs", "mrp", "1"]) == 0
    assert main(["cost"]) == 0
    told = capsys.readouterr().out
    assert "mrp (here): 0.00 CPU-hours; nothing paid\n" in told and "in all" in told


def test_a_name_that_is_neither_a_run_nor_a_chain_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "mpr"]) == 2
    assert "no chain" in capsys.readouterr().err


def test_a_chain_of_the_same_name_is_what_is_meant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "outputs" / ".chains" / "mrp" / "jobs").mkdir(parents=True)
    main(["logs", "mrp", "collect"])
    main(["status"])
    told = capsys.readouterr().out
    assert "two episodes" not in told and "(here" not in told


def test_a_named_run_is_shown_without_the_chains_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "outputs" / ".chains" / "desk_noisy" / "jobs").mkdir(parents=True)
    assert main(["status", "mrp"]) == 1
    told = capsys.readouterr()
    assert "mrp (here" in told.out and "desk_noisy" not in told.out + told.err


def test_a_log_can_be_followed_and_searched_for_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "mrp", "collect", "--follow"]) == 0
    assert capsys.readouterr().out == "two episodes\n"
    assert main(["logs", "mrp", "collect", "--errors"]) == 0
    told = capsys.readouterr()
    assert told.out == "" and "no error in it" in told.err


def test_an_error_before_any_stage_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), recorded_run(tmp_path, "early", ["collect"]):
        raise ValueError("no key is set")
    assert main(["status", "early"]) == 1
    told = capsys.readouterr().out
    assert "failed, 0 of 1 stages made" in told and "! no key is set" in told
