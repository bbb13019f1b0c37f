"""Snapshots: a job runs the code and configuration that were submitted, stored by content, whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config import Config, load
from r2v.errors import UsageError
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import snapshot
from r2v.slurm.chain.chain import Chain
from r2v.slurm.chain.snapshot import code_lines, pin, take
from r2v.storage.artifact_manifest import OWN_PACKAGE, code_identity

NAME = "desk_noisy"
PY = ".py"
BARE = Chain(name=NAME, benchmark="desk", condition="noisy", config_sha="ab")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a git project with code, a configuration, a package of the user's and many files that are neither."""
    for path, text in {
        f"mine/__init__{PY}": "",
        f"mine/reward{PY}": "def whole(before, after):\n    return 1.0\n",
        "mine/table.txt": "what a package reads is its own\n",
        f"aside{PY}": "SPEED = 1\n",
        "configs/desk/noisy.yaml": "seed: 3\n",
        "notes.txt": "no code\n",
        "data/runs/one.json": "{}\n",
        f"big{PY}": "#" * 100,
        ".gitignore": f"/big{PY}\n/data/*\n/outputs/*\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for words in (["init", "-q"], ["add", "mine", "configs"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(*overrides: str) -> Config:
    return load(None, list(overrides))


def held(root: Path, id_: str) -> set[str]:
    """Return the files of a snapshot that are not R2V's own."""
    top = root / "outputs/.snapshots" / id_
    files = (path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file())
    return {name for name in files if not name.startswith("r2v/") and "__pycache__" not in name}


def test_it_holds_code_and_configuration_tracked_or_not_and_nothing_that_is_ignored(checkout: Path) -> None:
    made = take(checkout, config())
    theirs = {f"mine/__init__{PY}", f"mine/reward{PY}", "mine/table.txt", f"aside{PY}", "configs/desk/noisy.yaml"}
    assert held(checkout, made.id) == {*theirs, "snapshot.json"}
    own = checkout / "outputs/.snapshots" / made.id / "r2v"
    assert {path.name for path in OWN_PACKAGE.glob("*.py")} == {path.name for path in own.glob("*.py")}
    assert made.bytes < 20 << 20 and (own / "bundled/weights/tiny/model.safetensors").exists()


def test_its_name_is_its_content(checkout: Path) -> None:
    first = take(checkout, config())
    assert take(checkout, config()) == first
    (checkout / f"aside{PY}").write_text("SPEED = 2\n")
    second = take(checkout, config())
    assert second.id != first.id
    os.utime(checkout / f"aside{PY}", (0, 0))
    assert take(checkout, config()).id == second.id, "no time is content"
    (checkout / f"aside{PY}").write_text("SPEED = 1\n")
    damaged = checkout / "outputs/.snapshots" / first.id / f"aside{PY}"
    damaged.write_text("SPEED = 9\n")
    assert take(checkout, config()).id == first.id and damaged.read_text() == "SPEED = 1\n", "made again"


def test_the_modules_that_a_configuration_names_are_in_it_wherever_they_lie(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "lab").mkdir()
    (elsewhere / "lab" / f"__init__{PY}").write_text("")
    (elsewhere / "lab" / f"checks{PY}").write_text("def units(problem, answer):\n    return True\n")
    monkeypatch.syspath_prepend(str(elsewhere))
    named = take(checkout, config("hierarchical.problems.checker=lab.checks:units"))
    assert {f"lab/__init__{PY}", f"lab/checks{PY}"} <= held(checkout, named.id)
    ignored = take(checkout, config("hierarchical.problems.checker=big:units"))
    assert f"big{PY}" in held(checkout, ignored.id)
    assert not {f"numpy/__init__{PY}"} & held(checkout, take(checkout, config("teacher.provider=numpy:array")).id)


def test_what_is_too_much_is_refused_by_its_largest_files_and_live_takes_none(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "LARGEST_SNAPSHOT", 1 << 20)
    with pytest.raises(UsageError, match=r"are \d+ MB, at most 1 are kept: the largest are r2v/.*--live"):
        pin(checkout, BARE, config())
    live = pin(checkout, BARE, config(), live=True)
    assert live.snapshot is None and live.code == code_identity()
    assert (chains.folder(checkout, NAME) / "code").resolve() == checkout


def test_a_job_runs_what_was_submitted_whatever_was_edited_since(checkout: Path) -> None:
    made = pin(checkout, BARE, config())
    (checkout / f"aside{PY}").write_text("SPEED = 2\n")
    program = "import aside, r2v, sys; print(aside.SPEED, r2v.__file__)"
    script = "\n".join([*code_lines(NAME), f'{sys.executable} -c "{program}"'])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(["bash", "-c", script], cwd=checkout, env=environment, capture_output=True, text=True)
    speed, file = done.stdout.split()
    assert (speed, Path(file).parents[1].name) == ("1", made.snapshot), done.stderr


def test_jobs_in_the_queue_keep_their_code_and_a_submission_says_so(
    checkout: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = pin(checkout, BARE, config())
    assert pin(checkout, BARE, config(), queued=first) == first and not caplog.records
    (checkout / f"aside{PY}").write_text("SPEED = 2\n")
    assert pin(checkout, replace(BARE, config_sha="cd"), config(), queued=first).snapshot == first.snapshot
    assert f"submitted={first.snapshot}" in caplog.text
    assert pin(checkout, first, config()).snapshot != first.snapshot, "resume takes what is here now"


def test_a_snapshot_says_what_it_was_taken_of(checkout: Path) -> None:
    made = take(checkout, config())
    told = json.loads((checkout / "outputs/.snapshots" / made.id / "snapshot.json").read_text())
    assert (told["id"], told["bytes"]) == (made.id, made.bytes) and told["files"] > 500
