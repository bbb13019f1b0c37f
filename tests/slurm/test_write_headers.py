"""Headers as a site wants them: at both doors the same, written twice the same, and undone without trace."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from r2v.errors import UsageError
from r2v.slurm import headers, site_profile, write_headers
from r2v.slurm.site_profile import SITE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "scripts/slurm", tmp_path / "scripts/slurm")
    return tmp_path


def texts(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (root / "scripts/slurm").glob("*.sh")}


def read(root: Path, name: str, job: str = "") -> headers.Resources:
    return headers.read(root / "scripts/slurm" / name, job)


@pytest.mark.parametrize("name", site_profile.names())
def test_a_profile_is_written_once_and_undone_without_trace(name: str, root: Path) -> None:
    before = texts(root)
    write_headers.choose(name, root)
    after = texts(root)
    assert after != before and write_headers.write(root) == [] and write_headers.require_written(root)
    write_headers.choose("cpu" if name != "cpu" else "nersc", root)
    write_headers.choose(name, root)
    assert texts(root) == after
    write_headers.choose("none", root)
    assert texts(root) == before


def test_perlmutter_has_constraints_for_partitions(root: Path) -> None:
    write_headers.choose("nersc", root)
    bc, perturb = read(root, "03_train_policy.sh", "bc"), read(root, "02_perturb.sh")
    assert (bc.directives["gpus-per-node"], bc.directives["constraint"], bc.gpus) == ("2", "gpu", 2)
    assert perturb.directives["constraint"] == "cpu" and "gres" not in bc.directives
    assert "partition" not in {**bc.directives, **perturb.directives}


def test_nodes_that_are_given_whole_have_their_gpus_counted(root: Path) -> None:
    write_headers.choose("tacc", root)
    bc = read(root, "03_train_policy.sh", "bc")
    assert bc.gpus == 2 and not {"gres", "mem"} & bc.directives.keys() and bc.directives["partition"] == "gpu-a100"
    assert read(root, "08_evaluate.sh", "evaluate").helpers == ""


def test_no_job_asks_for_a_gpu_where_there_is_none(root: Path) -> None:
    write_headers.choose("cpu", root)
    found = [headers.read(path) for path in headers.scripts(root)]
    assert {(one.gpus, one.directives["partition"]) for one in found} == {(0, "cpu")}


def test_longer_times_are_cut_and_modules_stand_in_env_sh(root: Path) -> None:
    (root / SITE).write_text('max_time: "24:00:00"\nmodules: ["module load cuda/12.4"]\nall_jobs: {exclusive: true}\n')
    write_headers.write(root)
    assert read(root, "03_train_policy.sh", "bc").directives["time"] == "24:00:00"
    assert read(root, "02_perturb.sh").directives["time"] == "04:00:00"
    assert read(root, "02_perturb.sh").directives["exclusive"] == ""
    env = (root / write_headers.ENVIRONMENT).read_text()
    assert env.index("\nmodule load cuda/12.4\n") < env.index(".venv/bin/activate")


def test_an_edit_that_is_not_written_is_named(root: Path) -> None:
    write_headers.choose("nersc", root)
    (root / SITE).write_text("base: nersc\nall_jobs: {account: m1}\n")
    with pytest.raises(UsageError, match="r2v cluster set"):
        write_headers.require_written(root)
    with pytest.raises(UsageError, match="was edited"):
        write_headers.choose("tacc", root)
    write_headers.write(root)
    assert write_headers.require_written(root).all_jobs["account"] == "m1"
    assert read(root, "08_evaluate.sh").directives["account"] == "m1"
