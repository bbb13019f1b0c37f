"""A run outside Slurm writes down how far it is, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from r2v.log import logger
from r2v.pipeline.local_run import LocalRun, cpu_seconds, is_running, local_runs, log_of, recorded_run
from r2v.storage import record


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


def test_a_pace_tells_what_is_left(tmp_path: Path) -> None:
    with recorded_run(tmp_path, "mrp", ["bc"]) as run, run.stage("bc"):
        record.event("clone", 0, 10, {})
        time.sleep(0.01)
        record.event("clone", 5, 10, {})
        run.write()
        (stage,) = only(tmp_path).stages
        assert stage.seconds_left is not None and stage.seconds_left > 0
        record.event("test", 0, 3, {})
        assert only(tmp_path).stages[0].seconds_left is None
