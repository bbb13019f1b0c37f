"""Section 6's command lines: collecting, querying the runs, and resuming after an interruption."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes

from . import seed
from .workspace import checkout, sh, written

COLLECT = seed.commands(seed.block("Collect data for a specific model"))
RESUME = seed.block("Resume a partial run")
BANNER = seed.block("Collect data for a specific model", "")
RUN_ID = re.compile(r"[a-z0-9]+_[a-z0-9]+_[A-Za-z0-9.\-]+_\d{8}T\d{6}(-\d+)?")


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkout in which the three commands were typed, one after the other."""
    root = checkout(tmp_path_factory.mktemp("collected"))
    told = [sh(root, seed.stand_in(shlex.join(words))) for words in COLLECT]
    assert [process.returncode for process in told] == [0, 0, 0], [process.stderr for process in told]
    return root


def test_each_command_is_a_run_of_its_own(collected: Path) -> None:
    plain, tagged, elsewhere = DataRegistry(collected / "data").query(benchmark="desk", status="done")
    assert all(RUN_ID.fullmatch(run.run_id) for run in (plain, tagged, elsewhere))
    assert [run.n_episodes for run in (plain, tagged, elsewhere)] == [12, 12, 8]
    assert (plain.tags, plain.notes) == ((), "")
    assert (tagged.tags, tagged.notes) == (("ablation", "noisy"), "using 0.3 prompt injection prob")
    assert plain.output_dir == collected / "data" / "runs" / plain.run_id
    assert elsewhere.output_dir == collected / "data" / "experiments" / "exp_01" / elsewhere.run_id
    assert plain.data_sha256 == tagged.data_sha256


def test_the_directory_structure(collected: Path) -> None:
    drawn = seed.block("Directory structure", "")
    files = set(re.findall(r"^ {6}(\S+)", drawn, re.M))
    assert files == {"run_manifest.json", "trajectories.jsonl", "collection_log.jsonl"}
    for run in DataRegistry(collected / "data").query():
        assert {path.name for path in run.output_dir.iterdir()} == files
        assert len((run.output_dir / "collection_log.jsonl").read_text().splitlines()) == run.n_episodes
    listed = json.loads((collected / "data" / "registry.json").read_text())
    assert listed["schema_version"] == "1" and len(listed["runs"]) == 3


def test_every_episode_says_which_run_and_model_it_is_of(collected: Path) -> None:
    for run in DataRegistry(collected / "data").query():
        for episode in list(StoredEpisodes(run.trajectories)):
            about = episode.metadata
            assert (about.run_id, about.teacher_model, about.teacher_provider) == (
                run.run_id,
                run.model_name,
                run.provider,
            )


def test_an_interrupted_run_goes_on_under_its_id(collected: Path, tmp_path: Path) -> None:
    root, command = checkout(tmp_path), seed.stand_in(RESUME)
    full = sh(root, f"ulimit -f 40; {command}")  # a disk of 40 kB
    assert (full.returncode, full.stderr.count("Run ID")) == (5, 1), full.stderr
    assert "cannot write data/runs/" in full.stderr.splitlines()[-1]
    run = DataRegistry(root / "data").query()[0]
    paid = run.trajectories.read_text().splitlines()
    assert (run.status, run.n_episodes) == ("failed", len(paid)) and 0 < len(paid) < 12
    again = sh(root, command)
    assert again.returncode == 0, again.stderr
    assert f"collection resumed: stored={len(paid)}/12" in again.stderr
    assert again.stderr.count(seed.stand_in(BANNER)) == 2
    run = DataRegistry(root / "data").get("desk_scripted_expert-v1_20260218T210012")
    lines = run.trajectories.read_text().splitlines()
    assert (run.status, len(lines)) == ("done", 12) and set(paid) < set(lines)
    uninterrupted = DataRegistry(collected / "data").query()[0]
    assert run.data_sha256 == uninterrupted.data_sha256


def test_a_run_id_is_not_continued_with_another_configuration(collected: Path) -> None:
    run = DataRegistry(collected / "data").query()[0]
    command = [
        "python",
        "scripts/collect_trajectories.py",
        "--config",
        "configs/desk/clean.yaml",
        "--num-episodes",
        "5",
        "--seeds",
        "1",
        "2",
        "3",
        "--run-id",
        run.run_id,
    ]
    refused = sh(collected, shlex.join(command))
    assert refused.returncode == 2
    assert f"run {run.run_id} was made with fingerprint" in refused.stderr.splitlines()[-1]
    assert DataRegistry(collected / "data").get(run.run_id) == run


def test_a_data_set_that_the_hub_does_not_give_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    scripted = ["--overrides", "teacher.provider=scripted", "teacher.model_name=expert-v1"]
    refused = sh(root, shlex.join([*COLLECT[1], *scripted]))
    assert refused.returncode == 2 and "r2v swebench install" in refused.stderr.splitlines()[-1]
    assert written(root) == set()


@pytest.mark.parametrize("words", [COLLECT[0], COLLECT[2]], ids=["webarena", "webarena_elsewhere"])
def test_a_benchmark_that_cannot_be_played_here_is_refused_before_anything_is_written(
    words: list[str], tmp_path: Path
) -> None:
    root = checkout(tmp_path)
    refused = sh(root, shlex.join(words))
    assert (refused.returncode, refused.stdout) == (2, "")
    [line] = refused.stderr.splitlines()
    assert line.startswith("r2v: env.benchmark=webarena: ")
    assert line.endswith("run `r2v webarena install`") or "WA_SHOPPING" in line
    assert written(root) == set()


def test_a_teacher_that_is_not_here_yet_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    refused = sh(
        root,
        "python scripts/collect_trajectories.py --overrides teacher.provider=openai teacher.model_name=gpt-4o "
        "teacher.model.retires=never",
    )
    (last,) = refused.stderr.splitlines()
    assert refused.returncode == 2
    assert last.startswith("r2v: teacher.provider=openai: ")
    assert written(root) == set()
