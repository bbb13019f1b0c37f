"""Drills on a real Slurm with several nodes: ranks on both, their nodes in the record, and equal results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.project import ROOT, Project

WHOLE = pytest.mark.whole
SPREAD = "--nodes=2 --ntasks=2 --ntasks-per-node=1"
OPTIONS = (
    "training.ranks=2 policy.device=cpu training.bc.num_epochs=40 training.bc.lr=5e-3 training.preference.num_epochs=1 "
    "verifier.num_tasks=6 candidates.num_folds=2 candidates.num_tasks=6 candidates.num_samples=3 "
    "preference.pair_mode=verifier_margin preference.min_margin=0.0 preference.accept=always hierarchical.iterations=2"
)
LINE = f"sbatch --cpus-per-task=1 --mem=4G {{}} scripts/slurm/{{}} --overrides {OPTIONS}"
CASES = {
    "bc": ("03_train_policy.sh desk noisy bc", "outputs/policy/desk_noisy/bc", ()),
    "verifier": ("04_train_verifier.sh desk noisy", "outputs/verifier/desk_noisy", ()),
    "preference": (
        "03_train_policy.sh desk noisy preference",
        "outputs/policy/desk_noisy/preference",
        ("train_policy --stage bc", "train_verifier", "generate_candidates"),
    ),
    "hierarchical": ("10_train_hierarchical.sh", "outputs/hierarchical/desk_noisy", ()),
}
"""The command line, the artifact it makes, and the stages that it needs besides collect and perturb."""


def record_of(project: Project, id_: str) -> Path:
    """Return the record folder of a job that has ended well."""
    project.cluster.wait(lambda: not project.cluster.squeue(), timeout=900, every=1.0)
    (folder,) = project.folder.glob(f"outputs/.chains/*/jobs/{id_}")
    logs = [log.read_text()[-4000:] for log in project.folder.glob(f"logs/*_{id_}.out")]
    assert json.loads((folder / "exit.json").read_text()).get("rc") == 0, logs or "no log"
    return folder


@WHOLE
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_on_two_nodes_train_what_two_ranks_on_one_train(name: str, slurm: Cluster, tmp_path: Path) -> None:
    project = Project(slurm, tmp_path / "one", fake_stages=False)
    shutil.copytree(ROOT / "configs/hierarchical", project.folder / "configs/hierarchical")
    shutil.copy(ROOT / "configs/hierarchical.yaml", project.folder / "configs")
    typed, place, needs = CASES[name]
    for command in ("collect", "perturb", *needs) if name != "hierarchical" else ():
        project.r2v(*command.split(), "--config", "configs/desk/noisy.yaml", "--overrides", *OPTIONS.split())
    other, found = project.copy(tmp_path / "two"), []
    for here, where in ((project, ""), (other, SPREAD)):
        record = record_of(here, here.sbatch(LINE.format(where, typed)))
        files = here.artifact(place)["files"]
        found.append({path: sha for path, sha in files.items() if path.endswith(".safetensors")})
    assert found[0] and found[0] == found[1]
    listed = json.loads((record / "ranks.json").read_text())["ranks"]
    assert [(rank["rank"], rank["node"]) for rank in listed] == [(0, "g1"), (1, "g2")]
    assert all(rank["host"] and rank["device"] == "cpu" for rank in listed)
    if name != "bc":
        return
    idle = other.sbatch(f"sbatch {SPREAD} scripts/slurm/07_train_router.sh desk")
    slurm.wait(lambda: not slurm.squeue(), timeout=120)
    assert "router works on one and the others would stand idle" in other.record(idle, "exit.json")["line"]
