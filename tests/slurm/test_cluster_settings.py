"""`r2v cluster set`: every resource, one script alone, a site profile; sbatch is asked about what is not known."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from r2v.cli import main as cli
from r2v.slurm import headers
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart-cluster.md", "docs/slurm.md", "r2v/cli/project.py"])
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
