"""An experiment's runs: each exactly once, whatever happens to the orchestrator."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from r2v.errors import EnvironmentFault, LeaseConflict, UsageError
from r2v.experiments.records import experiments, read_record, write_record
from r2v.experiments.schedule.launcher import start_process
from r2v.experiments.schedule.opening import RunOptions
from r2v.experiments.schedule.orchestrator import FreeMemory, GpuWatch, free_gpu_memory, run_experiment, slots_that_fit
from tests import warm
from tests.experiments.programs import Sweep

PATIENCE = 300.0


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.chdir(tmp_path)
    return Sweep(tmp_path)


def test_every_point_is_run_once_one_after_another_on_exactly_its_configuration(sweep: Sweep) -> None:
    folder = run_experiment(sweep.write(3), RunOptions())
    record = read_record(folder)
    assert [(run.run, run.status, run.return_code) for run in record.runs] == [
        (f"run_00{n}", "completed", 0) for n in (1, 2, 3)
    ]
    for before, after in zip(record.runs, record.runs[1:], strict=False):
        assert str(before.started_at) < str(before.completed_at) <= str(after.started_at)
    read = {line[1]: line[2] for line in sweep.ledger if line[0] == "begin"}
    for run in record.runs:
        assert hashlib.sha256(Path(run.config_path).read_bytes()).hexdigest() == read[str(run.values["x"])]
        assert Path(run.config_path) == folder / "configs" / f"{run.run}.yaml"
        assert Path(run.run_dir) == folder / "runs" / run.run
    assert sweep.figures() == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_limit_and_a_resumption_make_six_of_six(sweep: Sweep) -> None:
    spec = sweep.write(6)
    first = run_experiment(spec, RunOptions(resume=True, limit=3))
    assert read_record(first).count("completed") == 3 and read_record(first).count("pending") == 3
    assert run_experiment(spec, RunOptions(resume=True, limit=3)) == first
    assert sweep.counts("begin") == {str(x): 1 for x in range(1, 7)}
    run_experiment(spec, RunOptions(resume=True))
    assert sum(sweep.counts("begin").values()) == 6


def test_what_failed_is_told_and_run_again_by_a_resumption(sweep: Sweep) -> None:
    (sweep.folder / "broken").touch()
    with pytest.raises(EnvironmentFault, match=r"2 of 2 runs failed: run_001 \(return code 3\)"):
        run_experiment(sweep.write(2), RunOptions())
    assert [(run.status, run.return_code) for run in sweep.record().runs] == [("failed", 3)] * 2
    (sweep.folder / "broken").unlink()
    folder = run_experiment(sweep.spec, RunOptions(resume=True))
    assert [(run.status, run.return_code) for run in sweep.record().runs] == [("completed", 0)] * 2
    assert (folder / "runs" / "run_001.attempt1" / "output.log").exists()


def test_a_changed_specification_is_refused_or_its_points_appended(sweep: Sweep) -> None:
    folder = run_experiment(sweep.write(2), RunOptions())
    with pytest.raises(UsageError, match="1 points are new"):
        run_experiment(sweep.write(3), RunOptions(resume=True))
    assert run_experiment(sweep.write(3), RunOptions(resume=True, allow_spec_change=True)) == folder
    assert [run.run for run in read_record(folder).runs] == ["run_001", "run_002", "run_003"]
    assert sweep.counts("begin") == {"1": 1, "2": 1, "3": 1}


def test_a_sweep_whose_program_was_edited_is_not_resumed_and_names_it(sweep: Sweep) -> None:
    folder = run_experiment(sweep.write(2), RunOptions())
    program = sweep.folder / "program.sh"
    program.write_text(program.read_text() + "# a comment\n")
    before = sweep.record()
    for options in (RunOptions(resume=True), RunOptions(resume=True, allow_spec_change=True)):
        with pytest.raises(UsageError, match=f"program.sh: changed since {folder} was begun.*--fresh"):
            run_experiment(sweep.spec, options)
    assert sweep.record() == before
    assert run_experiment(sweep.spec, RunOptions(fresh=True)) != folder
    assert [run.status for run in sweep.record().runs] == ["completed", "completed"]


def test_points_that_any_experiment_has_completed_are_taken_from_there(sweep: Sweep) -> None:
    first = run_experiment(sweep.write(2), RunOptions())
    second = run_experiment(sweep.write(3), RunOptions())
    assert second != first and sweep.counts("begin") == {"1": 1, "2": 1, "3": 1}
    runs = read_record(second).runs
    assert [run.reused_from for run in runs] == [f"{first.name}/run_001", f"{first.name}/run_002", None]
    assert sweep.figures() == [(1, 1.0), (2, 2.0), (3, 3.0)]
    (sweep.folder / "program.sh").write_text((sweep.folder / "program.sh").read_text() + "# another program\n")
    run_experiment(sweep.spec, RunOptions())
    assert sweep.counts("begin") == {"1": 2, "2": 2, "3": 2}


def test_flags_reach_a_simulation_as_typed_and_are_refused_in_training(sweep: Sweep) -> None:
    spec = sweep.write(1, mode="simulation")
    folder = run_experiment(spec, RunOptions(flags=("--show", "--no_confusion")))
    assert "flags --show --no_confusion" in (folder / "runs" / "run_001" / "output.log").read_text()
    with pytest.raises(UsageError, match="--show: is for mode: simulation"):
        run_experiment(sweep.write(1), RunOptions(flags=("--show",)))


def test_an_experiment_is_run_by_one_process_at_a_time(sweep: Sweep) -> None:
    first = run_experiment(sweep.write(1), RunOptions())
    held = started(sweep.write(2, seconds=600))
    try:
        _until(lambda: len(sweep.ledger) == 3)
        with pytest.raises(LeaseConflict):
            run_experiment(sweep.spec, RunOptions(resume=True))
    finally:
        held.terminate()
        assert held.wait() == 75
    assert [run.status for run in sweep.record().runs] == ["pending", "pending"]
    assert read_record(first).count("completed") == 1


def test_a_run_whose_process_is_gone_is_run_again(sweep: Sweep) -> None:
    folder = run_experiment(sweep.write(2), RunOptions(limit=1))
    record = read_record(folder)
    dead = start_process(["true"], folder / "runs" / "other" / "output.log", {})
    assert dead.process is not None
    dead.process.kill()
    dead.process.communicate()
    (second,) = (run for run in record.runs if run.status == "pending")
    broken = json.loads((folder / "experiment.json").read_text())
    broken["runs"][1] |= {"status": "running", "process": dead.owner.filename}
    (folder / "experiment.json").write_text(json.dumps(broken))
    assert read_record(folder).run(second.run).status == "running"
    run_experiment(sweep.spec, RunOptions(resume=True))
    assert sweep.counts("end") == {"1": 1, "2": 1}


def test_a_run_of_another_machine_is_not_taken_for_dead(sweep: Sweep) -> None:
    folder = run_experiment(sweep.write(1), RunOptions(limit=1))
    record = read_record(folder)
    (run,) = record.runs
    (folder / "runs" / "run_001" / "return_code").unlink()
    there = "elsewhere,abc,12,34,,def"
    write_record(folder, record.with_run(replace(run, status="running", process=there)))
    with pytest.raises(LeaseConflict, match="elsewhere"):
        run_experiment(sweep.spec, RunOptions(resume=True))
    run_experiment(sweep.spec, RunOptions(resume=True, lost=True))
    assert sweep.counts("end") == {"1": 2}


def test_a_grid_that_is_killed_twenty_times_is_completed_with_no_point_lost_or_run_twice(sweep: Sweep) -> None:
    """kill -9 of the orchestrator at random moments: the runs it had started continue and are found by the next one."""
    spec = sweep.write(24, seconds=0.3)
    draw, kills = random.Random(16), 0
    while kills < 20 and sweep.counts("end").total() < 24:
        begun, process = len(sweep.ledger), started(spec, "--resume", "--slots", "2")
        if kills % 2:  # half of the kills come right after the start of a run, the others at any moment
            _until(lambda: len(sweep.ledger) > begun or process.poll() is not None)  # noqa: B023
        time.sleep(draw.uniform(0, 0.5))
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills >= 10
    assert started(spec, "--resume", "--slots", "2").wait() == 0
    assert len(list(experiments())) == 1
    once = {str(x): 1 for x in range(1, 25)}
    assert sweep.counts("begin") == once and sweep.counts("end") == once
    assert sweep.figures() == [(x, float(x)) for x in range(1, 25)]


def started(spec: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start `r2v experiments run` in a process of its own."""
    command = [sys.executable, "-m", "r2v", "experiments", "run", "--exp", str(spec), *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


MEETING = """\
touch "$R2V_RUN_DIR/begun"
looks=0
until [ "$(ls outputs/experiments/*/runs/run_001/begun 2>/dev/null | wc -l)" = 2 ]; do
  looks=$((looks + 1)); [ $looks -lt 3000 ] || exit 4
  sleep 0.1
done
cp "$1" "$R2V_RUN_DIR/read.yaml"
echo "{\\"score\\": $(sed -n 's/^x: //p' "$1")}" > "$R2V_RUN_DIR/metrics.json"
"""
"""A program whose first run ends only when two experiments have begun theirs."""


def test_two_experiments_begun_at_one_moment_in_one_checkout_keep_apart(sweep: Sweep) -> None:
    spec = sweep.write(2)
    (sweep.folder / "program.sh").write_text(MEETING)
    both = [warm.start(Path.cwd(), "experiments", "run", "--exp", str(spec)) for _ in range(2)]
    told = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    folders = list(experiments())
    assert len(folders) == 2
    for folder in folders:
        runs = read_record(folder).runs
        assert [(run.status, run.reused_from) for run in runs] == [("completed", None)] * 2
        for run in runs:
            assert Path(run.run_dir) == folder / "runs" / run.run and Path(run.run_dir, "metrics.json").is_file()
            assert Path(run.run_dir, "read.yaml").read_bytes() == Path(run.config_path).read_bytes()


GIB = 2**30


@dataclass
class Measured:
    """Measured peaks of a run."""

    peak_bytes: int | None
    gpu_bytes: list[int] = field(default_factory=list)


def test_slots_go_by_what_the_runs_so_far_needed() -> None:
    assert slots_that_fit([], FreeMemory(memory=64 * GIB), 8) == 1
    assert slots_that_fit([Measured(None)], FreeMemory(memory=64 * GIB), 8) == 1
    assert slots_that_fit([Measured(6 * GIB)], FreeMemory(memory=10 * GIB), 8) == 1
    assert slots_that_fit([Measured(2 * GIB), Measured(3 * GIB)], FreeMemory(memory=10 * GIB), 8) == 3
    assert slots_that_fit([Measured(GIB)], FreeMemory(memory=64 * GIB), 8) == 8


def test_gpus_bound_them_where_runs_take_them_and_an_unmeasured_one_has_one_slot() -> None:
    free = FreeMemory(memory=64 * GIB, gpus=(40 * GIB, 80 * GIB))
    assert slots_that_fit([Measured(GIB)], free, 8) == 1
    assert slots_that_fit([Measured(GIB, [0, 0])], free, 8) == 8
    assert slots_that_fit([Measured(GIB, [0, 20 * GIB]), Measured(GIB, [0, 30 * GIB])], free, 8) == 2
    assert slots_that_fit([Measured(GIB, [35 * GIB, 0])], free, 8) == 1


def test_a_run_is_measured_while_it_works_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert GpuWatch(()).taken("run_001") == []
    smi = tmp_path / "nvidia-smi"

    def has_free(*mib: int) -> None:
        smi.write_text("#!/bin/sh\n" + "".join(f"echo {one}\n" for one in mib))
        smi.chmod(0o755)

    has_free(40000, 80000)
    watch = GpuWatch(free_gpu_memory(), every=0.0)
    has_free(10000, 80000)
    watch.look(["run_001"])
    has_free(30000, 80000)
    watch.look(["run_001"])
    has_free(0, 0)
    watch.look(["run_001", "run_002"])
    assert watch.taken("run_001") == [30000 << 20, 0] and watch.taken("run_002") == []
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert free_gpu_memory() == ()
