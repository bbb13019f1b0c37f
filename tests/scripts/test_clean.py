"""`make clean` in a scratch checkout with the results of the main job and of another benchmark."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BOTH = "router-shared"
"""An artifact that both benchmarks share."""


def publish(root: Path, place: str, artifact: str) -> None:
    """Publish an artifact as a stage does: by a relative link."""
    link = root / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path(*[".."] * (len(link.relative_to(root).parts) - 1)) / "outputs/.artifacts" / artifact)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    shutil.copy(REPOSITORY / "scripts" / "clean.py", tmp_path / "scripts")
    prefixes = {"collect-m": "mrp", "bc-m": "mrp", "evaluate-m": "mrp", "router-unlinked": "mrp", BOTH: "mrp"}
    for name, prefix in {**prefixes, "bc-d": "''", "evaluate-d": "''", "router-old": "''"}.items():
        (tmp_path / "outputs/.artifacts" / name).mkdir(parents=True)
        (tmp_path / "outputs/.artifacts" / name / "config.yaml").write_text(f"prefix: {prefix}\n")
        (tmp_path / "outputs/.artifacts" / name / "attempt.meta.json").write_text("{}")
    for place, artifact in {
        "outputs/mrp/policy/bc": "bc-m",
        "outputs/mrp/router": BOTH,
        "results/mrp": "evaluate-m",
        "results/ablations/mrp": "evaluate-m",
        "data/mrp/trajectories": "bc-m",
        "outputs/policy/desk_noisy/bc": "bc-d",
        "outputs/router/desk_noisy": BOTH,
        "results/desk_noisy": "evaluate-d",
        "results/ablations/desk": "evaluate-d",
    }.items():
        publish(tmp_path, place, artifact)
    for file in ("data/runs/r/trajectories.jsonl", "results/batch_jobs/g/report.txt", ".ruff_cache/x", "logs/a.out"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("kept")
    return tmp_path


def test_only_the_main_jobs_results_and_caches_go(checkout: Path) -> None:
    done = subprocess.run(
        ["make", "clean", f"PYTHON={sys.executable}"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for gone in ("data/mrp", "outputs/mrp", "results/mrp", "results/ablations/mrp", ".ruff_cache"):
        assert not (checkout / gone).is_symlink() and not (checkout / gone).exists(), gone
    kept = {path.name for path in (checkout / "outputs/.artifacts").iterdir()}
    assert kept == {"collect-m", BOTH, "bc-d", "evaluate-d", "router-old"}
    for there in ("outputs/policy/desk_noisy/bc", "outputs/router/desk_noisy", "results/desk_noisy"):
        assert (checkout / there / "config.yaml").exists()
    for there in ("data/runs/r/trajectories.jsonl", "results/batch_jobs/g/report.txt", "logs/a.out"):
        assert (checkout / there).read_text() == "kept"


def test_no_link_is_followed_and_what_is_no_result_is_kept_and_named(checkout: Path) -> None:
    home = checkout / "home"
    for name in ("config.yaml", "attempt.meta.json", "thesis.tex"):
        home.mkdir(exist_ok=True)
        (home / name).write_text("prefix: mrp\n")
    unmarked = checkout / "outputs/.artifacts/router-unmarked"
    unmarked.mkdir()
    (unmarked / "config.yaml").write_text("prefix: mrp\n")
    (checkout / "outputs/.artifacts/bc-linked").symlink_to(home)
    for name in ("outputs/mrp/mine", "build"):
        (checkout / name).symlink_to(checkout / "logs")
    (checkout / "outputs/mrp/notes.txt").write_text("mine")
    done = subprocess.run(
        [sys.executable, "scripts/clean.py"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(home.iterdir())) == 3 and unmarked.is_dir() and (checkout / "outputs/mrp/notes.txt").exists()
    named = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert named == {
        "outputs/.artifacts/bc-linked",
        "outputs/.artifacts/router-unmarked",
        "outputs/mrp/mine",
        "outputs/mrp/notes.txt",
        "build",
    }
    assert not (checkout / "outputs/mrp/policy").exists()
