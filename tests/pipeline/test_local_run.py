"""A run outside Slurm records its progress, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import load
from r2v.emulator import Emulator
from r2v.log import logger
from r2v.pipeline.local_run import (
    RUN_FILE,
    LocalRun,
    _logged,
    cpu_seconds,
    is_running,
    local_runs,
    log_of,
    recorded_run,
)
from r2v.pipeline.run import run_here
from r2v.storage import record
from tests.trust import MICRO


def only(root: Path) -> LocalRun:
    (run,) = local_runs(root)
    return run


def test_stages_are_told_as_they_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "r2v")
    with recorded_run(tmp_path, "mrp", ["collect", "bc"]) as run:
        with run.stage("collect"):
            logger.info("two episodes")
            record.event("play", 1, 4, {})
            now = only(tmp_path)
            assert is_running(tmp_path, now) and now.pid == os.getpid()
            assert [one.state for one in now.stages] == ["running", "waiting"]
            assert (now.stages[0].what, now.stages[0].done, now.stages[0].total) == ("play", 1, 4)
        with pytest.raises(ValueError), run.stage("bc"):
            raise ValueError("no rows\nat all")
    ended = only(tmp_path)
    assert ended.ended is not None and not is_running(tmp_path, ended)
    assert [(one.state, one.error) for one in ended.stages] == [("done", ""), ("failed", "no rows")]
    assert log_of(tmp_path, "mrp", "collect").read_text() == "two episodes\n"


def test_a_stage_alone_keeps_what_is_known_of_the_others(tmp_path: Path) -> None:
    with recorded_run(tmp_path, "mrp", ["collect", "bc"]) as run, run.stage("collect"):
        pass
    before = only(tmp_path).stages[0]
    with recorded_run(tmp_path, "mrp", ["bc"]) as run, run.stage("bc"):
        pass
    after = only(tmp_path).stages
    assert after[0] == before and after[1].state == "done"


def test_inside_another_run_and_inside_a_job_no_other_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_run(tmp_path, "mrp", ["bc"]) as outer, recorded_run(tmp_path, "mrp", ["bc"]) as inner:
        assert inner is outer
    monkeypatch.setenv(record.FOLDER, str(tmp_path / "job"))
    with recorded_run(tmp_path, "other", ["bc"]) as run, run.stage("bc"):
        pass
    assert only(tmp_path).name == "mrp"


CODE = """
import sys, time
from dataclasses import replace
from pathlib import Path
from r2v.pipeline.local_run import recorded_run
with recorded_run(Path(sys.argv[1]), "mrp", ["bc"]) as run, run.stage("bc"):
    print("runs", flush=True)
    time.sleep(600)
"""


def test_a_killed_run_is_seen_to_be_dead_and_a_second_one_is_not_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with subprocess.Popen([sys.executable, "-c", CODE, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"runs\n"
        running = only(tmp_path)
        assert is_running(tmp_path, running) and running.pid == process.pid
        with recorded_run(tmp_path, "mrp", ["bc"]) as run, run.stage("bc"):
            pass
        assert only(tmp_path) == running
        process.send_signal(signal.SIGKILL)
    assert not is_running(tmp_path, running) and only(tmp_path).stages[0].state == "running"


def test_the_time_of_children_counts() -> None:
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", "sum(range(2_000_000))"], check=True)
    assert cpu_seconds() > before


def test_each_stage_has_its_own_peak_of_memory(tmp_path: Path) -> None:
    with recorded_run(tmp_path, "mrp", ["collect", "bc"]) as run:
        with run.stage("collect"):
            assert len(b"x" * (256 << 20)) == 256 << 20
        with run.stage("bc"):
            pass
    collect, bc = only(tmp_path).stages
    assert collect.own_peak == bc.own_peak and collect.peak_mib > 256
    assert not bc.own_peak or bc.peak_mib < collect.peak_mib - 200


def test_a_pace_tells_what_is_left(tmp_path: Path) -> None:
    with recorded_run(tmp_path, "mrp", ["bc"]) as run, run.stage("bc"):
        record.event("clone", 2, 10, {})
        (stage,) = only(tmp_path).stages
    assert stage.state == "running" and stage.seconds_left is None, "nothing was done yet while it was looked at"
    assert replace(stage, since=1000.0, done=4).left_at(1100.0) == 300.0
    assert replace(stage, since=1000.0, done=10).left_at(1100.0) == 0.0


def test_an_error_between_two_stages_is_the_runs_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError), recorded_run(tmp_path, "mrp", ["collect", "bc"]) as run:
        with run.stage("collect"):
            pass
        raise ValueError("no cap")
    assert only(tmp_path).error == "no cap" and [one.state for one in only(tmp_path).stages] == ["done", "waiting"]


def test_a_run_of_another_name_inside_is_not_mixed_in(tmp_path: Path) -> None:
    other = recorded_run(tmp_path, "other", ["pilot"])
    with recorded_run(tmp_path, "mrp", ["bc"]), other as inner, inner.stage("pilot"):
        pass
    assert [one.job for one in only(tmp_path).stages] == ["bc"]


def test_what_a_killed_run_did_does_not_run_in_the_next(tmp_path: Path) -> None:
    with recorded_run(tmp_path, "mrp", ["bc"]) as run:
        run.change("bc", state="running")
    with recorded_run(tmp_path, "mrp", ["verifier"]) as run, run.stage("verifier"):
        bc, verifier = only(tmp_path).stages
        assert (bc.state, bc.error, verifier.state) == ("failed", "killed", "running")


def test_a_damaged_file_is_named_and_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recorded_run(tmp_path, "mrp", ["bc"]):
        pass
    path = next(tmp_path.glob(f"outputs/.runs/mrp/{RUN_FILE}"))
    path.write_bytes(path.read_bytes()[:-9])
    assert local_runs(tmp_path) == [] and f"{path} is damaged" in caplog.text
    with recorded_run(tmp_path, "mrp", ["bc"]):
        assert only(tmp_path).stages[0].job == "bc"


def test_a_full_disk_costs_the_log_and_not_the_work(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO", "r2v")
    with _logged(Path("/dev/full")):
        for _ in range(2000):
            logger.info("a line of the log, which the disk refuses")
    with _logged(Path("/proc/nothing/here.log")):
        logger.info("a line")
    assert "No space left" not in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_told_and_the_work_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "r2v")
    (tmp_path / "outputs").write_text("a file, where a folder should be")
    with recorded_run(tmp_path, "mrp", ["bc"]) as run, run.stage("bc"):
        pass
    assert "run not recorded for `r2v status`" in caplog.text


def test_what_a_stage_paid_is_what_was_billed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with Emulator(answer="desk", models=["big-1"]) as emulator:
        teacher = {"provider": "openai", "model_name": "big-1", "base_url": emulator.openai_url, "mode": "concurrent"}
        teacher |= {"usd_in": "100", "usd_out": "400", "max_usd": "50", "preflight": "false"}
        asked = [f"teacher.{key}={value}" for key, value in teacher.items()]
        run_here(load(str(MICRO), [*asked, "data.num_episodes=2"]), until="collect", root=tmp_path)
        bills = emulator.ledger().bills
    billed = sum(100 * bill.tokens_in + 400 * bill.tokens_out for bill in bills) / 1e6
    (stage,) = only(tmp_path).stages
    assert stage.usd == pytest.approx(billed, abs=1e-5) and billed > 0.01
