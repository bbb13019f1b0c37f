"""Rewriting headers for a site: both commands do the same, a second write changes nothing, and undoing leaves no
trace."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from r2v.cli import main as cli
from r2v.errors import UsageError
from r2v.slurm.site import headers, site_profile, write_headers
from r2v.slurm.site.site_profile import SITE
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked

ROOT = Path(__file__).resolve().parents[3]


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


@pytest.fixture
def clone(faked: Faked) -> Faked:
    shutil.copytree(ROOT / "scripts/slurm", faked.root / "scripts/slurm")
    faked.answer()
    return faked


def asked(name: str) -> dict[str, str]:
    return dict(headers.read(Path("scripts/slurm") / name).directives)


def test_a_profile_and_directives_in_one_line(clone: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster", "set", "profile=nersc", "account=m1", "train_policy.time=12:00:00"]) == 0
    bc = asked("03_train_policy.sh")
    assert (bc["constraint"], bc["account"], bc["time"]) == ("gpu", "m1", "12:00:00")
    assert asked("08_evaluate.sh")["time"] == "24:00:00"
    assert cli.main(["cluster", "set"]) == 0


@pytest.mark.parametrize("page", ["README.md", "docs/slurm.md", "r2v/cli/cluster/project.py"])
def test_the_first_command_that_a_page_teaches_leaves_jobs_without_a_gpu_on_their_partition(
    page: str, clone: Faked
) -> None:
    taught = re.search(r"r2v cluster set((?: [\w.]+=\S+)+)", (ROOT / page).read_text())
    assert taught and cli.main(["cluster", "set", *taught[1].split()]) == 0
    assert {asked(name)["partition"] for name in ("02_perturb.sh", "mrp.sh")} == {"cpu"}
    assert asked("08_evaluate.sh")["partition"] == "gpu" and "gpu" in asked("08_evaluate.sh")["gres"]


def test_an_option_of_a_plugin_is_set_where_sbatch_knows_it(clone: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster", "set", "container-image=image.sqsh"]) == 2
    assert "container-image" in capsys.readouterr().err and "container-image" not in asked("02_perturb.sh")
    (clone.folder / "plugins.json").write_text(json.dumps(["container-image"]))
    assert cli.main(["cluster", "set", "container-image=image.sqsh"]) == 0
    assert asked("02_perturb.sh")["container-image"] == "image.sqsh"


@pytest.mark.parametrize(
    ("word", "told"),
    [("partitions=x", "did you mean partition?"), ("mem", "KEY=VALUE"), ("profile=nersk", "did you mean nersc?")],
)
def test_what_cannot_be_is_refused(word: str, told: str, clone: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster", "set", word]) == 2
    assert told in capsys.readouterr().err and not Path("scripts/slurm/site.yaml").exists()


def test_the_template_of_a_new_project_is_no_edit_and_gives_way_to_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["init", str(tmp_path / "mine")]) == 0
    monkeypatch.chdir(tmp_path / "mine")
    assert write_headers.says_nothing(Path())
    write_headers.choose("gpu")
    assert not write_headers.says_nothing(Path()) and site_profile.project_profile(Path()).base == "gpu"
