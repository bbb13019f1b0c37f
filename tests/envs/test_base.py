"""A benchmark by dotted path is found in the folder of the command, by the plain command and inside a job script."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from r2v.config import TaskSelection
from r2v.envs.base import BENCHMARKS, benchmark_class, load_benchmark, more_tasks
from r2v.envs.chain import ChainBenchmark
from r2v.errors import EmptyResult, UsageError
from r2v.rollout.session import episode_specs
from tests.docs.pages import REPOSITORY

SOURCE = """from r2v.envs.chain import ChainBenchmark


class Corridors(ChainBenchmark):
    name = "corridors"

    def __init__(self, *, doors: int = 2) -> None:
        super().__init__(num_tasks=40, length=doors)
"""
CONFIG = "env: {benchmark: 'own_world.corridors:Corridors', options: {doors: 3}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a benchmark in a package of its own and a configuration that names it."""
    package = tmp_path / "own_world"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "corridors.py").write_text(SOURCE)
    (tmp_path / "own.yaml").write_text(CONFIG)
    return tmp_path


def plain(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `r2v` as pip installs it: the current folder is not on Python's path (-P)."""
    code = "import sys; from r2v.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-P", "-c", code, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_plain_command_finds_a_benchmark_in_the_folder_where_it_is_started(folder: Path) -> None:
    words = ("collect", "--config", "own.yaml", "--num-episodes", "3", "--seeds", "1")
    done = plain(folder, *words)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "data" / "runs").glob("*corridors*")
    assert len((run / "trajectories.jsonl").read_text().splitlines()) == 3
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    done = plain(elsewhere, *words[:1], "--config", "../own.yaml", *words[3:])
    assert done.returncode == 2 and f"searched {elsewhere}, PYTHONPATH and installed packages" in done.stderr
    assert done.stderr.count("\n") == 1, "one line"


def test_a_job_finds_it_in_the_checkout_it_was_submitted_from(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "scripts").symlink_to(REPOSITORY / "scripts")
    spool = tmp_path_factory.mktemp("spool")
    script = spool / "slurm_script"  # sbatch runs a copy of the script, in a folder of its own
    script.write_text((REPOSITORY / "scripts" / "slurm" / "01_collect.sh").read_text())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "R2V"))}
    environment = {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "SLURM_SUBMIT_DIR": str(folder),
    }
    command = ["bash", str(script), "--config", "own.yaml", "--num-episodes", "3", "--seeds", "1"]
    done = subprocess.run(command, cwd=spool, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((folder / "data" / "runs").glob("*corridors*"))


def test_what_cannot_be_loaded_is_one_line_that_names_what_was_searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert load_benchmark("own_world.corridors:Corridors", {"doors": 4}).name == "corridors"
    with pytest.raises(UsageError, match="env.options for own_world.corridors:Corridors"):
        load_benchmark("own_world.corridors:Corridors", {"windows": 4})
    with pytest.raises(UsageError, match="has no Coridors; did you mean Corridors"):
        load_benchmark("own_world.corridors:Coridors")
    with pytest.raises(UsageError, match=f"cannot import own_world.towers .*searched {folder}"):
        load_benchmark("own_world.towers:Towers")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_remedy_for_too_few_tasks_names_options_that_the_benchmark_takes(name: str) -> None:
    made_by = benchmark_class(name)
    takes = inspect.signature(made_by).parameters
    assert set(re.findall(r"env\.options\.(\w+)", more_tasks(made_by))) <= set(takes)
    assert "num_tasks" in takes or "num_tasks" not in more_tasks(made_by)


def test_a_split_without_tasks_is_told_with_the_benchmarks_own_remedy() -> None:
    class Halls(ChainBenchmark):
        more_tasks = "build more halls"

    selection = TaskSelection(condition="clean", perturbation_seeds=[1], split_seed=0, split_by="task_id")
    with pytest.raises(EmptyResult, match="chain has no task in the heldout split: 5 tasks in all; build more halls"):
        episode_specs(Halls(num_tasks=5), "heldout", [1], selection, method="slm_only")
