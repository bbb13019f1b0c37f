"""The site profile that is proposed from Slurm's own configuration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from r2v.slurm.client import client
from r2v.slurm.doctor.doctor import examine
from r2v.slurm.doctor.propose import proposal
from r2v.slurm.site.site_profile import SITE
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked
from tests.slurm.project import Project

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("partitions", "files", "remedy"),
    [
        ({"cpu": [], "gpu": ["gpu:h100:8"]}, {}, "r2v cluster set profile=gpu gpu=h100"),
        ({"cpu": [], "gpu": ["gpu:4"]}, {}, "r2v cluster set profile=gpu"),
        ({"cpu": []}, {}, "r2v cluster set profile=cpu"),
        (
            {"batch": ["gpu:a100:8"], "cpu": []},
            {"plugins.json": '["container-image"]'},
            "r2v cluster set profile=pyxis",
        ),
        ({"a": [], "b": ["gpu:a100:4"]}, {"config": "ClusterName = Perlmutter"}, "r2v cluster set profile=nersc"),
        (
            {"short": [], "small": ["gpu:v100:2"], "big": ["gpu:a100:8"]},
            {"limits.json": '{"big": "1-00:00:00"}', "config": "MaxArraySize            = 1"},
            "r2v cluster set profile=gpu gpu=a100; then in scripts/slurm/site.yaml: gpu_jobs: {partition: big}; "
            'cpu_jobs: {partition: short}; max_time: "24:00:00"; arrays: false; and again: r2v cluster set',
        ),
    ],
)
def test_the_shipped_profile_that_fits_is_proposed_with_what_differs(
    partitions: dict[str, list[str]], files: dict[str, str], remedy: str, faked: Faked
) -> None:
    (faked.folder / "partitions.json").write_text(json.dumps(partitions))
    for name, text in files.items():
        (faked.folder / name).write_text(text)
    (told,) = proposal(Path(), {one.name: one for one in client.partitions()})
    assert (told.state, told.remedy) == ("ok", remedy)


def test_a_project_with_a_profile_of_its_own_is_proposed_none(faked: Faked) -> None:
    shutil.copytree(REPOSITORY / "scripts/slurm", faked.root / "scripts/slurm")
    (faked.root / SITE).write_text("base: gpu\n")
    told = [one for one in examine() if str(SITE) in one.what]
    assert "from the profile gpu" in told[0].what


def test_on_a_real_cluster_a_profile_is_proposed_and_a_node_may_submit(project: Project) -> None:
    said = project.r2v("doctor", check=False).stdout
    assert "the site profile gpu fits this cluster, drill" in said and "profile=gpu gpu=a100" in said
    assert "a sentinel's own line is accepted" in said
    id_ = project.sbatch('sbatch -o logs/node.out --mem=2G --wrap "python -m r2v doctor"')
    project.drained()
    assert "this node may submit jobs" in (project.folder / "logs/node.out").read_text(), id_
