"""Runs in the background outlive the process that started them, are listed, and are ended with all their children."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.errors import InputError, UsageError
from r2v.experiments.schedule import background
from r2v.experiments.schedule.background import BackgroundRun, background_runs, launch, named, stop
from r2v.storage.lease import Owner
from tests.experiments.programs import Sweep

PATIENCE = 300.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for run in background_runs():
        if run.state == "running":
            stop(run)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_command_runs_on_and_leaves_its_output_and_its_code(folder: Path) -> None:
    run = launch(["sh", "-c", "echo said; exit 4"], name="talker")
    until(lambda: run.state != "running")
    assert (run.folder / "nohup.log").read_text() == "said\n" and run.state == "failed"
    assert [one.id for one in background_runs()] == [run.id]
    assert run.folder == Path("logs/background") / run.id and run.id.startswith("talker_")


def test_a_run_survives_the_terminal_and_is_ended_with_its_children(folder: Path) -> None:
    run = launch(["sh", "-c", "sleep 1000 & echo $! > child; wait"], name="sleeper")
    child = pid_in(folder / "child")
    os.killpg(run.owner.pid, signal.SIGHUP)
    assert os.getsid(run.owner.pid) == run.owner.pid != os.getsid(0)
    time.sleep(0.2)
    assert run.state == "running"
    assert stop(named("sleeper"))
    until(lambda: not lives(child) and run.state != "running")
    assert not stop(run)


def test_a_later_process_of_the_same_number_is_not_ended(folder: Path) -> None:
    run = launch(["sleep", "1000"], name="sleeper")
    record = run.folder / "background.json"
    values = json.loads(record.read_text())
    owner = Owner.of(values["process"])
    assert owner is not None
    values["process"] = values["process"].replace(
        f",{owner.started},", ",1,"
    )  # as if another process had this number now
    record.write_text(json.dumps(values))
    (found,) = background_runs()
    assert found.state == "killed" and not stop(found)
    assert lives(run.owner.pid)
    assert stop(run)


def test_a_run_is_named_by_id_name_or_folder(folder: Path) -> None:
    first, second = (launch(["true"], name="twin") for _ in range(2))
    assert first.id != second.id
    until(lambda: second.state == "completed")
    assert named(first.id) == named(f"logs/background/{first.id}/") == named(f"background_runs/{first.id}") == first
    assert named(f"logs/background/{first.id}/nohup.log") == first
    assert named("twin").name == "twin"
    with pytest.raises(UsageError, match="no such run in the background"):
        named("triplet")


def test_an_experiment_is_started_listed_and_stopped_with_its_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(folder)
    spec = sweep.write(2, seconds=1000)
    assert main(["experiments", "background", "--experiment", str(spec), "--mode", "simulation"]) == 2
    assert "is of mode training" in capsys.readouterr().err
    assert main(["experiments", "background", "--experiment", str(spec), "--", "--slots", "none"]) == 2
    assert "--slots" in capsys.readouterr().err and background_runs() == []
    assert main(["experiments", "background", "--experiment", str(spec), "--", "--slots", "1"]) == 0
    (run,) = background_runs()
    until(lambda: bool(sweep.ledger))
    (experiment,) = (folder / "outputs" / "experiments").iterdir()
    capsys.readouterr()
    assert main(["experiments", "background", "--list"]) == 0
    assert run.id in capsys.readouterr().out
    assert main(["experiments", "background", "--stop", f"outputs/experiments/{experiment.name}"]) == 0
    assert "stopped" in capsys.readouterr().out
    assert run.state == "stopped" and sweep.counts("end") == {}
    assert [one.status for one in sweep.record().runs] == ["pending", "pending"]


def test_a_damaged_record_is_named_and_nothing_is_ended_by_it(folder: Path) -> None:
    run = launch(["true"], name="short")
    until(lambda: run.state == "completed")
    for text in ("", "{}", '{"id": 3}', "[]"):
        (run.folder / "background.json").write_text(text)
        with pytest.raises(InputError, match=r"background\.json is damaged"):
            background_runs()
    (run.folder / "background.json").unlink()


def test_a_run_of_another_machine_is_left_to_it(folder: Path) -> None:
    made = BackgroundRun(id="a", name="a", command=("x",), process="there,abc,12,34,,def", started_at="2026")
    assert made.state == "elsewhere"
    with pytest.raises(InputError, match="runs on there"):
        background.stop(made)
