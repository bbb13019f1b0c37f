"""Seed 002: its specifications, its command lines as typed, and the locations of its files.

`seed_002.md` is the seed itself, byte for byte. Its specifications are those of configs/experiments, which add the
`command` of a tiny program; its base configurations are those of configs/mlp and configs/greedy.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.seeds.workspace import REPOSITORY, sh

TEXT = (Path(__file__).parent / "seed_002.md").read_text()
SHA256 = "1f543629e0afca7d9a5d479eecbe07128386e8e9ba36d31b7572558b2bf0296a"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.M | re.S)
LINES = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
SPECS = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml" and text.startswith("name:")]
POINTS = {"lr_sweep_mnist_mlp": 10, "sched_sim_mnist_mlp": 4, "mixed_configs": 2, "lambda_sweep_greedy": 4}
PATIENCE = 600.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a fresh clone; `python` and `python3` are the interpreter of these tests."""
    for name in ("configs", "scripts", "examples", "bg_experiment.sh"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {shutil.which("python", path=_bin())} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def _bin() -> str:
    return str(Path(sys.executable).parent)


def newest(root: Path) -> dict[str, Any]:
    folder = max((root / "outputs" / "experiments").iterdir(), key=lambda path: path.stat().st_mtime)
    found: dict[str, Any] = json.loads((folder / "experiment.json").read_text())
    return found


def test_the_copy_is_the_seed() -> None:
    assert hashlib.sha256(TEXT.encode()).hexdigest() == SHA256
    assert len(LINES) == 6 and {spec["name"] for spec in SPECS} == set(POINTS)


def test_its_specifications_are_those_of_the_repository_but_for_the_command() -> None:
    shipped = {}
    for path in (REPOSITORY / "configs" / "experiments").glob("*.yaml"):
        spec = yaml.safe_load(path.read_text())
        shipped[spec["name"]] = {key: value for key, value in spec.items() if key not in ("command", "checks")}
    for spec in SPECS:
        assert shipped[spec["name"]] == spec


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs" / "experiments").glob("*.yaml")), ids=lambda p: p.stem)
def test_its_specifications_run(path: Path, root: Path) -> None:
    name = yaml.safe_load(path.read_text())["name"]
    if name not in POINTS:
        return
    done = sh(root, f"python3 scripts/run_experiment.py --exp experiments/specs/{path.name} --slots 2")
    assert done.returncode == 0, done.stderr
    assert "used=configs/experiments/" in done.stderr
    runs = newest(root)["runs"]
    assert [run["status"] for run in runs] == ["completed"] * POINTS[name]
    for run in runs:
        assert (root / run["config_path"]).is_file() and (root / run["run_dir"] / "metrics.json").is_file()
        assert {"started_at", "completed_at", "return_code"} <= run.keys()


def test_its_command_lines_run_as_typed(root: Path) -> None:
    foreground, background, listing, resumed, _, tail = LINES
    assert foreground.startswith("python3 scripts/run_experiment.py") and background.startswith("./bg_experiment.sh")
    started = sh(root, background)
    assert started.returncode == 0, started.stderr
    (folder,) = (root / "logs" / "background").iterdir()
    listed = sh(root, listing)
    assert folder.name in listed.stdout, listed
    deadline = time.monotonic() + PATIENCE
    while not (folder / "return_code").exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert (folder / "return_code").read_text() == "0\n", (folder / "nohup.log").read_text()
    assert "completed" in sh(root, listing).stdout
    shown = sh(root, tail.replace("-f", "-n 100").replace("background_runs/<...>", f"logs/background/{folder.name}"))
    assert "10 completed of 10" in shown.stdout
    again = sh(root, resumed)
    assert again.returncode == 0 and "10 completed of 10" in again.stderr, again.stderr
    begun = sh(root, foreground)  # another experiment, whose points have all been run
    assert begun.returncode == 0 and "run reused" in begun.stderr, begun.stderr


def test_the_greedy_models_rule_of_lengths_refuses_points_before_anything_runs(root: Path) -> None:
    text = (REPOSITORY / "configs" / "experiments" / "lambda_ace_sweep_greedy.yaml").read_text()
    (root / "spec.yaml").write_text(text.replace("[0.01, 0.01, 0.01]", "[0.01, 0.01]"))
    done = sh(root, "python3 scripts/run_experiment.py --exp spec.yaml")
    assert done.returncode == 2 and "2 points are refused: run_003" in done.stderr, done.stderr
    assert not (root / "outputs").exists()
