"""`r2v train_policy` and its neighbours as a cluster runs them: stopped by a signal, resumed, and on two ranks."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.data.episode import to_line
from r2v.policy.export import export
from r2v.storage.record import ERROR, EVENTS
from tests import warm

from . import two_ranks

ROOT = Path(__file__).parents[2]
TOY = (
    "--stage",
    "bc",
    "--trajectories",
    "t.jsonl",
    "--overrides",
    "policy.model_name=base",
    "policy.device=cpu",
    "policy.max_seq_len=64",
    "inference.max_new_tokens=6",
    "training.bc.batch_size=4",
    "training.num_epochs=18",
    "training.save_steps=1000",
)
MICRO = (
    "--config",
    str(ROOT / "tests" / "micro.yaml"),
    "--overrides",
    "data.num_episodes=40",
    "training.num_epochs=2",
    "training.bc.max_examples=60",
    "training.preference.max_examples=20",
    "verifier.num_tasks=8",
    "candidates.num_tasks=4",
    "preference.pair_mode=teacher_vs_slm",
    "preference.min_margin=0.0",
    "training.save_steps=1000",
    "inference.max_steps=6",
)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return warm.start(folder, *words, env={"R2V_RECORD": str(folder / "record")})


def r2v(folder: Path, *words: str, code: int = 0) -> str:
    with start(folder, *words) as process:
        _, said = process.communicate()
    assert process.returncode == code, said
    return said


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "record" / EVENTS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def stopped(folder: Path, *words: str, when: Callable[[], bool]) -> str:
    """Type a command and send it SIGTERM once `when` holds; it must exit with 75 and the reason. Return its output."""
    with start(folder, *words) as process:
        try:
            deadline = time.monotonic() + 120
            while not when():
                assert process.poll() is None and time.monotonic() < deadline, "it never came so far"
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 75, said
    assert json.loads((folder / "record" / ERROR).read_text())["kind"] == "interrupted"
    return said


def files(folder: Path) -> dict[str, dict[str, str]]:
    """Return the content hashes of every finished artifact."""
    found = (folder / "outputs" / ".artifacts").glob("*/artifact.json")
    return {path.parent.name: json.loads(path.read_text())["files"] for path in found}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a small base model and trajectories."""
    folder = tmp_path_factory.mktemp("toy")
    export(two_ranks.loaded(torch.float32), folder / "base")
    (folder / "t.jsonl").write_text("".join(to_line(episode) + "\n" for episode in two_ranks.EPISODES))
    return folder


def test_two_ranks_are_stopped_and_resumed_from_the_checkpoint_alone(toy: Path) -> None:
    """The command keeps the lease and the manifest, and rank 0 alone logs; 18 epochs of 18 rows are 81 updates of 4."""
    said = stopped(
        toy,
        "train_policy",
        *TOY,
        "training.ranks=2",
        "training.save_steps=10",
        when=lambda: any(toy.glob("outputs/.artifacts/bc-*/checkpoint-10")),
    )
    assert "r2v: bc: stopped after update" in said and "Traceback" not in said
    [attempt] = (toy / "outputs" / ".artifacts").glob("bc-*")
    kept = int((attempt / "checkpoint-latest").resolve().name.removeprefix("checkpoint-"))
    assert 10 <= kept < 81 and not (attempt / "artifact.json").exists() and not attempt.with_suffix(".lease").exists()
    checkpoint = "outputs/policy/desk_noisy/bc/checkpoint-latest"
    r2v(toy, "train_policy", "--resume", checkpoint)
    assert json.loads((attempt / "bc_report.json").read_text())["losses"][-1]["step"] == 81
    told = [(event["what"], event["done"], event["total"]) for event in events(toy)]
    assert told == sorted(told) and told.count(("bc", 0, 81)) == told.count(("bc", 81, 81)) == 1
    assert told.count(("bc", kept, 81)) == 2, "where it stopped, and where it went on"
    last = [event for event in events(toy) if event["what"] == "bc"][-1]
    assert last["loss"] > 0 and last["tokens_per_s"] > 0
    again = r2v(toy, "train_policy", "--resume", checkpoint)
    assert "up to date" in again and "attempt already finished" in again


def test_ranks_that_cannot_share_a_batch_are_one_line(toy: Path) -> None:
    said = r2v(toy, "train_policy", *TOY, "training.ranks=3", "seed=9", code=2).splitlines()[-1]
    assert said.startswith("r2v: batch_size=4 x gradient_accumulation_steps=1: 3 ranks cannot share 4 rows an update;")


def test_resuming_publishes_where_the_run_did(toy: Path) -> None:
    words = [*TOY, "training.num_epochs=3", "seed=5"]
    r2v(toy, "train_policy", "--output", "elsewhere", *words)
    place = toy / "outputs" / "policy" / "desk_noisy" / "bc"
    before = place.resolve() if place.is_symlink() else None
    (toy / "elsewhere" / "bc" / "artifact.json").unlink()
    r2v(toy, "train_policy", "--resume", "elsewhere/bc/checkpoint-latest")
    assert (toy / "elsewhere" / "bc" / "artifact.json").exists()
    assert (place.resolve() if place.is_symlink() else None) == before


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkout with training data and a verifier."""
    folder = tmp_path_factory.mktemp("labelled")
    for command in ("collect", "perturb", "train_verifier"):
        r2v(folder, command, *MICRO)
    return folder


def test_a_verifier_stopped_in_its_first_fold_ends_in_the_same_files(labelled: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(labelled, again, symlinks=True)
    [made] = (again / "outputs" / ".artifacts").glob("verifier-*")
    for path in (made, again / "record"):
        shutil.rmtree(path)
    said = stopped(again, "train_verifier", *MICRO, when=lambda: any(e["what"] == "verifier" for e in events(again)))
    assert "same command continues" in said
    r2v(again, "train_verifier", *MICRO)
    assert files(again) == files(labelled) and made.name in files(again)


def test_all_is_bc_and_candidates_and_preference_of_this_bc(labelled: Path, tmp_path: Path) -> None:
    """Stopped during cloning and during the candidates, the same command resumes; its artifacts are those of `r2v run`,
    which finds nothing left to do. A checkpoint of either phase is resumed by its path alone."""
    checkout = tmp_path / "checkout"
    shutil.copytree(labelled, checkout, symlinks=True)
    shutil.rmtree(checkout / "record")
    for what in ("bc", "sample and execute candidates"):
        stopped(
            checkout,
            "train_policy",
            "--stage",
            "all",
            *MICRO,
            when=lambda what=what: any(e["what"] == what for e in events(checkout)),
        )  # type: ignore[misc]
    said = r2v(checkout, "train_policy", "--stage", "all", *MICRO)
    assert re.findall("^stage up to date: stage=(.*)$", said, re.M) == ["bc"]
    later = ("router_features", "router", "evaluate", "ablations")
    said = r2v(checkout, "run", "--without", *later, *MICRO)
    jobs = ["collect", "perturb", "bc", "verifier", "candidates", "preference"]
    assert re.findall("^stage up to date: stage=(.*)$", said, re.M) == jobs
    said = r2v(checkout, "train_policy", "--resume", "outputs/micro/policy/preference/checkpoint-latest")
    assert "stage=preference" in said and "attempt already finished" in said
