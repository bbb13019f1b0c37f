"""Runs in Slurm's queue: each submitted once, as many at once as configured, found again by the next orchestrator.

The fake Slurm keeps each script, and its cluster runs one at each pause of the orchestrator. A real one is drilled in
tests/slurm/test_drill_sweeps.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.errors import EnvironmentFault, Interrupted, UsageError
from r2v.experiments.records import read_record, write_record
from r2v.experiments.schedule.background import background_runs, stop
from r2v.experiments.schedule.opening import RunOptions
from r2v.experiments.schedule.orchestrator import run_experiment
from r2v.slurm.chain import chain as chains
from tests.experiments.programs import Sweep
from tests.experiments.schedule.test_background import until
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked
from tests.slurm.test_run_all import ROOT, calls, put, rows

QUEUE = RunOptions(slurm=2, look_every=0.0)


@dataclass
class Cluster:
    """Runs the oldest job of the fake queue at each pause; `most` is the largest queue so far."""

    faked: Faked
    most: int = 0
    begins: bool = True

    def __call__(self, seconds: float) -> None:
        queue = rows(self.faked)
        self.most = max(self.most, len(queue))
        if not queue or not self.begins:
            raise Interrupted("the terminal is closed")
        self.run(queue[0]["JobID"])
        put(self.faked, queue[1:])

    def run(self, id_: str) -> None:
        """Run a job to its end."""
        kept = json.loads((self.faked.folder / "kept" / f"{id_}.json").read_text())
        said = dict(word[2:].partition("=")[::2] for word in kept["options"])
        with Path(said["output"]).open("ab") as output:
            done = subprocess.run(
                ["bash"],
                input=kept["script"].encode(),
                cwd=said["chdir"],
                env={**os.environ, "SLURM_JOB_ID": id_},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        self.faked.accounted(id_, "COMPLETED" if done.returncode == 0 else "FAILED")


@pytest.fixture
def cluster(faked: Faked) -> Cluster:
    """Make a checkout with the scripts, and a cluster."""
    shutil.copytree(ROOT / "scripts/slurm", faked.root / "scripts/slurm")
    (faked.folder / "kept").mkdir()
    faked.answer()
    return Cluster(faked)


@pytest.fixture
def sweep(cluster: Cluster) -> Sweep:
    return Sweep(cluster.faked.root)


def submissions(cluster: Cluster) -> list[list[str]]:
    return calls(cluster.faked, "sbatch")


def test_the_queue_gives_the_table_that_one_slot_and_two_give(sweep: Sweep, cluster: Cluster) -> None:
    spec = sweep.write(5, more="resources: {time: '01:00:00', mem: 2G}\n")
    tables = []
    for options in (RunOptions(), RunOptions(slots=2, fresh=True), replace(QUEUE, fresh=True)):
        run_experiment(spec, options, cluster if options.slurm else (lambda seconds: None))
        tables.append(sweep.figures())
    assert tables == [[(x, float(x)) for x in range(1, 6)]] * 3
    assert cluster.most == 2 and len(submissions(cluster)) == 5
    assert sweep.counts("begin") == {str(x): 3 for x in range(1, 6)}
    words = submissions(cluster)[0]
    assert "--time=01:00:00" in words and "--mem=2G" in words and not [w for w in words if "array" in w]
    assert [run.return_code for run in sweep.record().runs] == [0] * 5


def test_whoever_comes_next_finds_what_is_in_the_queue_and_submits_it_no_second_time(
    sweep: Sweep, cluster: Cluster
) -> None:
    spec = sweep.write(3)
    cluster.begins = False
    with pytest.raises(Interrupted):
        run_experiment(spec, QUEUE, cluster)
    assert [run.status for run in sweep.record().runs] == ["running", "running", "pending"]
    cluster.begins = True
    run_experiment(spec, replace(QUEUE, resume=True), cluster)
    assert [run.status for run in sweep.record().runs] == ["completed"] * 3
    assert len(submissions(cluster)) == 3 and sweep.counts("begin") == {"1": 1, "2": 1, "3": 1}


def test_a_run_that_was_written_down_and_not_submitted_is_submitted_by_the_next(sweep: Sweep, cluster: Cluster) -> None:
    spec = sweep.write(1)
    folder = run_experiment(spec, RunOptions(limit=1))
    record = read_record(folder)
    (folder / "runs/run_001/return_code").unlink()
    mark = f"r2v-point:{folder.name}/run_001/1"
    write_record(folder, record.with_run(replace(record.runs[0], status="running", chain=mark)))
    cluster.begins = True

    def patient(seconds: float) -> None:
        if rows(cluster.faked):
            cluster(seconds)

    run_experiment(spec, replace(QUEUE, resume=True), patient)
    assert [run.status for run in sweep.record().runs] == ["completed"] and len(submissions(cluster)) == 1


def test_a_second_job_of_a_run_ends_at_once_and_a_requeued_one_goes_on(sweep: Sweep, cluster: Cluster) -> None:
    cluster.begins = False
    with pytest.raises(Interrupted):
        run_experiment(sweep.write(1), QUEUE, cluster)
    (row,) = rows(cluster.faked)
    kept = cluster.faked.folder / "kept"
    shutil.copy(kept / f"{row['JobID']}.json", kept / "900.json")
    for id_ in (row["JobID"], "900", row["JobID"]):
        cluster.run(id_)
    assert sweep.counts("begin") == {"1": 2}


def test_a_job_that_left_no_code_has_failed_as_slurm_says(
    sweep: Sweep, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    folder = sweep.write(1)

    def killed(seconds: float) -> None:
        for row in rows(cluster.faked):
            cluster.faked.accounted(row["JobID"], "TIMEOUT")
            (link,) = cluster.faked.root.glob("outputs/experiments/*/runs/run_001")
            (link / "slurm_job").symlink_to(row["JobID"])
        put(cluster.faked, [])
        (cluster.faked.folder / "accounting.json").write_text(json.dumps(cluster.faked.accounts))

    with caplog.at_level("INFO", logger="r2v"), pytest.raises(EnvironmentFault, match="1 of 1 runs failed"):
        run_experiment(folder, QUEUE, killed)
    assert "ended: TIMEOUT" in caplog.text


def test_what_slurm_would_not_give_is_told_before_anything_is_written(sweep: Sweep, cluster: Cluster) -> None:
    spec = sweep.write(1, more="resources: {partition: nowhere}\n")
    with pytest.raises(UsageError, match="will not give"):
        run_experiment(spec, QUEUE, cluster)
    assert not (sweep.folder / "outputs/experiments").exists()
    assert main(["experiments", "run", "--exp", str(spec), "--slurm", "3", "--slots", "2"]) == 2


def test_what_is_in_the_queue_is_cancelled_by_its_experiment(sweep: Sweep, cluster: Cluster) -> None:
    cluster.begins = False
    with pytest.raises(Interrupted):
        run_experiment(sweep.write(3), QUEUE, cluster)
    assert main(["experiments", "cancel"]) == 0
    assert rows(cluster.faked) == [] and {run.status for run in sweep.record().runs} == {"pending"}


def test_stopping_it_in_the_background_cancels_what_it_has_in_the_queue(
    sweep: Sweep, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = sweep.write(3)
    assert main(["experiments", "background", "--experiment", str(spec), "--", "--slurm", "2"]) == 0
    (run,) = background_runs()
    try:
        until(lambda: len(rows(cluster.faked)) == 2)
        assert main(["experiments", "background", "--stop", "sweep"]) == 0
    finally:
        stop(run)
    told = capsys.readouterr().out
    assert f"{run.id}: stopped" in told and "sweep: 2 runs cancelled in Slurm's queue" in told
    assert rows(cluster.faked) == [] and len(calls(cluster.faked, "scancel")) > 0
    assert {one.status for one in sweep.record().runs} == {"pending"} and run.state == "stopped"
    assert main(["experiments", "background", "--stop", "sweep"]) == 0
    assert "cancelled" not in capsys.readouterr().out


STAGED = """\
name: rates
mode: training
stage: train_verifier
base_config: base.yaml
sweep: {training.verifier.lr: [1.0e-4, 2.0e-4]}
"""


def test_a_point_over_a_stage_is_a_chain_of_its_own_and_what_they_share_is_one_job(cluster: Cluster) -> None:
    root = cluster.faked.root
    (root / "base.yaml").write_text("policy: {device: cuda}\n")
    (root / "spec.yaml").write_text(STAGED)
    cluster.begins = False
    for again in (False, True):
        with pytest.raises(Interrupted):
            run_experiment(root / "spec.yaml", replace(QUEUE, resume=again), cluster)
    (folder,) = (root / "outputs/experiments").iterdir()
    first, second = read_record(folder).runs
    assert (first.chain, second.chain) == (f"{folder.name}-run_001", f"{folder.name}-run_002")
    made = {one: chains.read(root, one) for one in (str(first.chain), str(second.chain))}
    stages = [call for call in submissions(cluster) if not any("~heal" in word for word in call)]
    assert len(stages) == 2 + 1, "one collection for both, and a verifier for each"
    assert {job: entry.owner for job, entry in made[str(second.chain)].jobs.items()} == {
        "collect": first.chain,
        "verifier": "",
    }
    assert f"prefix: {first.chain}" in Path(first.config_path).read_text()
    latest = made[str(first.chain)].jobs["collect"].latest
    assert latest is not None
    assert {json.loads(path.read_text())["group"] for path in (cluster.faked.folder / "kept").iterdir()} == {
        folder.name
    }
    assert main(["experiments", "cancel", folder.name]) == 0
    assert rows(cluster.faked) == [] and {run.status for run in read_record(folder).runs} == {"pending"}
