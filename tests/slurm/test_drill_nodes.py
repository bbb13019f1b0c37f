"""Drills on a real Slurm, several nodes: ranks on both, who is where in the record, and equal results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.project import Project

WHOLE = pytest.mark.whole
SPREAD = "--nodes=2 --ntasks=2 --ntasks-per-node=1"
OPTIONS = "training.ranks=2 policy.device=cpu training.bc.num_epochs=1 verifier.num_tasks=6 candidates.num_folds=2"
LINE = f"sbatch --cpus-per-task=1 --mem=4G {{}} scripts/slurm/{{}} desk noisy {{}} --overrides {OPTIONS}"
SCRIPTS = {"bc": "03_train_policy.sh", "verifier": "04_train_verifier.sh"}
PLACES = {"bc": "outputs/policy/desk_noisy/bc", "verifier": "outputs/verifier/desk_noisy"}


def record_of(project: Project, id_: str) -> Path:
    """Where a job that has ended well wrote about itself."""
    project.cluster.wait(lambda: not project.cluster.squeue(), timeout=900, every=1.0)
    folder = project.folder / "outputs/.chains/desk_noisy/jobs" / id_
    logs = [log.read_text()[-4000:] for log in project.folder.glob(f"logs/*_{id_}.out")]
    assert project.record(id_, "exit.json").get("rc") == 0, logs or "no log"
    return folder


@WHOLE
@pytest.mark.parametrize("name", ["bc", "verifier"])
def test_two_ranks_on_two_nodes_train_what_two_ranks_on_one_train(name: str, slurm: Cluster, tmp_path: Path) -> None:
    project = Project(slurm, tmp_path / "one", fake_stages=False)
    for command in ("collect", "perturb"):
        project.r2v(command, "--config", "configs/desk/noisy.yaml")
    other, found = project.copy(tmp_path / "two"), []
    for here, where in ((project, ""), (other, SPREAD)):
        words = "bc" if name == "bc" else ""
        record = record_of(here, here.sbatch(LINE.format(where, SCRIPTS[name], words)))
        files = here.artifact(PLACES[name])["files"]
        found.append({path: sha for path, sha in files.items() if path.endswith(".safetensors")})
    assert found[0] and found[0] == found[1]
    listed = json.loads((record / "ranks.json").read_text())["ranks"]
    assert [(rank["rank"], rank["node"]) for rank in listed] == [(0, "g1"), (1, "g2")]
    assert all(rank["address"].rpartition(":")[2].isdigit() for rank in listed)
    if name != "bc":
        return
    idle = other.sbatch(f"sbatch {SPREAD} scripts/slurm/07_train_router.sh desk")
    slurm.wait(lambda: not slurm.squeue(), timeout=120)
    assert "router works on one and the others would stand idle" in other.record(idle, "exit.json")["line"]
