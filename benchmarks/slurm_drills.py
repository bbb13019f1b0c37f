"""Drills that take minutes, on a real private Slurm: one row each, and exit code 1 if one fails.

    python benchmarks/slurm_drills.py            # about ten minutes on two cores
    python benchmarks/slurm_drills.py limit      # one of them

    desk     `bash run_all.sh desk` with the stages' own bodies, small: the same data hashes as `--here` makes
    limit    a stage that needs more than its minute: warned, checkpointed, requeued under its id, done
    deaf     one that ignores the warning: TIMEOUT, and its sentinel resubmits it from the checkpoint

Quick drills are tests, tests/slurm/test_drill_*.py; they send a stage Slurm's warning themselves.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.slurm.cluster import Cluster, lacking  # noqa: E402
from tests.slurm.project import JOBS, NAME, Project  # noqa: E402

MINUTE = {"time": "00:01:00", "signal": "B:USR2@25"}
ALONE = (
    "--overrides",
    "training.preference.lr=3e-4",
    "--without",
    "router_features",
    "router",
    "evaluate",
    "ablations",
)


def desk(cluster: Cluster, folder: Path) -> str:
    """Run the real pipeline on Slurm and with `--here`, and compare the data hashes."""
    config = (ROOT / "tests/micro.yaml").read_text().replace("prefix: micro\n", "")
    queue, here = (Project(cluster, folder / name, config=config, fake_stages=False) for name in ("queue", "here"))
    queue.run("bash", "run_all.sh", "desk")
    queue.drained(1500)
    here.run("bash", "run_all.sh", "desk", "--here")
    assert queue.status()[0] == 0
    states = cluster.run("sacct", "-nXPj", ",".join(queue.ids().values()), "-o", "State")  # squeue forgets in minutes
    assert set(states.stdout.split()) == {"COMPLETED"}, states.stdout
    assert queue.hashes() == here.hashes() and {name.rpartition("-")[0] for name in here.hashes()} == set(JOBS)
    return f"{len(here.hashes())} artifacts, all hashes equal"


def short_of_time(cluster: Cluster, folder: Path, **behaviour: object) -> Project:
    """Make a project whose preference stage has a limit of one minute and needs about 70 s."""
    project = Project(cluster, folder)
    project.r2v("run", "--config", "configs/desk/noisy.yaml")
    project.header("03_train_policy.sh", **MINUTE)
    project.behave(preference={"steps": 700, "seconds": 0.1, **behaviour})
    project.r2v("run_all", "desk", *ALONE)
    return project


def limit(cluster: Cluster, folder: Path) -> str:
    """Run a stage that Slurm warns of its time limit."""
    project = short_of_time(cluster, folder)
    project.drained(600)
    (attempt,) = project.attempts("preference")
    restarts = project.record(attempt["id"], "start.json")["restart"]
    assert project.status()[0] == 0 and restarts >= 1 and "goes on from step" in project.log("preference")
    return f"one job id, {restarts} restarts, done"


def deaf(cluster: Cluster, folder: Path) -> str:
    """Run a stage that Slurm kills at its time limit."""
    project = short_of_time(cluster, folder, deaf=True, steps=1000)
    cluster.wait(lambda: len(project.attempts("preference")) == 2, 300, every=1)
    first, second = project.attempts("preference")
    assert first["failure"]["kind"] == second["reason"] == "timeout" and second["counted"] is False
    cluster.wait(lambda: "goes on from step" in project.log("preference"))
    project.r2v("cancel", NAME)
    project.drained()
    return f"{first['failure']['line']}; {first['failure']['action']}"


DRILLS = {"desk": desk, "limit": limit, "deaf": deaf}


def main() -> int:
    """Run the drills asked for and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drills", nargs="*", metavar="DRILL", help=f"of {', '.join(DRILLS)}; all by default")
    names = parser.parse_args().drills or list(DRILLS)
    if unknown := set(names) - set(DRILLS):
        parser.error(f"no drill {', '.join(sorted(unknown))}; there are {', '.join(DRILLS)}")
    if lacking():
        sys.exit(f"no Slurm here ({', '.join(lacking())}): make slurm")
    failed = 0
    with Cluster() as cluster, tempfile.TemporaryDirectory() as scratch:
        for name in names:
            began = time.perf_counter()
            try:
                outcome = f"pass  {DRILLS[name](cluster, Path(scratch) / name)}"
            except (AssertionError, TimeoutError) as error:
                outcome, failed = f"FAIL  {error}", 1
                cluster.run("scancel", "--me")
            print(f"{name:<8}{time.perf_counter() - began:6.0f} s  {outcome}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
