"""A new project holds everything a pipeline needs, and existing files are untouched."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.cli import main as cli
from r2v.config import load
from r2v.errors import InputError, UsageError
from r2v.slurm.site.site_profile import project_profile
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked


def test_it_runs_with_a_benchmark_and_a_site_of_ones_own(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", ".", "--benchmark", "own_parcels:Parcels", "--profile", "cpu"]) == 0
    assert "configs/parcels/noisy.yaml" in capsys.readouterr().out
    (faked.root / "own_parcels.py").write_text("from examples.own_benchmark import Parcels as Parcels\n")
    assert load(faked.root / "configs" / "parcels" / "noisy.yaml").env.benchmark == "own_parcels:Parcels"
    assert project_profile(faked.root).cpu_only and (faked.root / "logs").is_dir()
    assert cli.main(["run_all", "parcels", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("sbatch --parsable") >= 10


def test_two_models_are_written_into_configurations_that_cost_little(
    faked: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--teacher", "openai:gpt-6.1-terra", "--student", "openai:gpt-6-luna"]
    assert cli.main(["init", ".", *words]) == 0
    assert "bash run_all.sh paid" in capsys.readouterr().out
    config = load(faked.root / "configs/paid/noisy.yaml")
    assert config.profile == "paid-small" and config.teacher.max_usd == 20 and config.policy.is_api
    assert cli.main(["run_all", "paid", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("sbatch --parsable") >= 3


def test_without_a_profile_the_template_is_there_and_counts_as_written(
    faked: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init", "."]) == 0
    assert "# all_jobs:" in (faked.root / "scripts" / "slurm" / "site.yaml").read_text()
    assert cli.main(["run_all", "desk", "--dry-run"]) == 0
    assert "sbatch" in capsys.readouterr().out


def test_reset_gives_the_shipped_headers_back_and_keeps_the_profile(
    faked: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init", ".", "--profile", "cpu"]) == 0
    scripts = {path: path.read_text() for path in (faked.root / "scripts/slurm").glob("*.sh")}
    assert cli.main(["cluster", "set", "mem=1G", "perturb.time=5", "account=lab7"]) == 0
    own = faked.root / "scripts/slurm/02_perturb.sh"
    own.write_text(own.read_text() + "# mine\n")
    assert cli.main(["cluster", "set", "headers=shipped", "perturb.mem=2G"]) == 0
    after = {path: path.read_text() for path in scripts}
    assert after.pop(own) == scripts.pop(own).replace("--mem=16G", "--mem=2G") + "# mine\n" and after == scripts
    assert cli.main(["cluster", "set", "headers=shipped"]) == 0 and "files_changed=1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["mine"], InputError.exit_code, "mine/configs/mrp.yaml: is there already"),
        (["new", "--teacher", "gpt-6.1-terra"], UsageError.exit_code, "written provider:model"),
        (["new", "--student", "openai:"], UsageError.exit_code, "policy.model_name"),
        (["new", "--benchmark", "parcels"], UsageError.exit_code, "written package.module:Class"),
        (["new", "--benchmark", "x:Desk"], UsageError.exit_code, "configs/desk/noisy.yaml is R2V's own"),
        (["new", "--profile", "nersk"], UsageError.exit_code, "nersc"),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(
    words: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "configs").mkdir(parents=True)
    (tmp_path / "mine" / "configs" / "mrp.yaml").write_text("mine")
    assert cli.main(["init", *words]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and said in lines[0]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["mrp.yaml"]
