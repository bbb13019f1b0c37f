"""Which run an attempt collects, and that helpers beside it change nothing of what the run comes to."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from r2v.config import Config, load
from r2v.data.manifest import RunManifest
from r2v.data.registry import DataRegistry
from r2v.data.store import TrajectoryStore
from r2v.errors import Interrupted
from r2v.pipeline.helping import help_job
from r2v.pipeline.jobs import job
from r2v.pipeline.run import run_job
from r2v.rollout.session import Session
from r2v.stages.collection_run import under_way
from r2v.storage.artifact import Work
from tests import warm

RUN_ID = "desk_scripted_expert-v1_20260102T030405"
SMALL = ("env.options.num_tasks=36", "env.options.num_heldout=0", "data.seeds=[1,2]", "data.num_episodes=6")
SETTINGS = (*SMALL, "rollout.workers=1", "rollout.episodes_per_block=2")
OF_TIME = ("started_at", "updated_at", "finished_at", "wall_time_seconds", "output_dir", "superseded")


def config(run_id: str | None = RUN_ID) -> Config:
    return load(None, [*SETTINGS, *([f"run.id={run_id}"] if run_id else [])])


def collect(root: Path, run_id: str | None = RUN_ID) -> RunManifest:
    run_job(config(run_id), job("collect"), {}, root=root, force=True)
    return the_run(root)


def the_run(root: Path) -> RunManifest:
    (run,) = DataRegistry(root / "data").query()
    return run


def content(run: RunManifest) -> dict[str, Any]:
    """What a run holds, but for when and where: its manifest, its episodes, and the set of its log's lines."""
    manifest = json.loads((run.output_dir / "run_manifest.json").read_text())
    log = [json.loads(line) for line in (run.output_dir / "collection_log.jsonl").read_text().splitlines()]
    lines = [{name: value for name, value in line.items() if name != "seconds_since_start"} for line in log]
    return {
        "manifest": {name: value for name, value in manifest.items() if name not in OF_TIME and "sha256" not in name},
        "episodes": run.trajectories.read_bytes(),
        "log": sorted(lines, key=lambda line: str(line["episode_id"])),
    }


def stopped_after(count: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection that ends early, as by a signal."""
    append, done = TrajectoryStore.append, list[str]()

    def stopping(store: TrajectoryStore, episode: Any) -> None:
        if len(done) == count:
            raise Interrupted("stopped")
        done.append(episode.episode_id)
        append(store, episode)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(TrajectoryStore, "append", stopping)
        collect(root)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the collection comes to by one process."""
    return content(collect(tmp_path_factory.mktemp("alone")))


def test_helpers_play_what_the_run_lacks_and_the_run_is_the_same(
    alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(3, tmp_path, monkeypatch)
    before = the_run(tmp_path).trajectories.read_bytes()
    assert before.count(b"\n") == 3
    help_job(config(), job("collect"), {}, root=tmp_path)
    assert the_run(tmp_path).trajectories.read_bytes() == before, "a helper writes nothing into the run"
    plays = list((tmp_path / "outputs/.episodes").rglob("*.jsonl"))
    assert sum(path.read_bytes().count(b"\n") for path in plays) == 9
    monkeypatch.setattr(Session, "open", lambda session: pytest.fail(f"{session.identity} is played a second time"))
    assert content(collect(tmp_path)) == alone
    assert not list((tmp_path / "outputs/.episodes").rglob("*.jsonl")), "the run has them"


def test_a_helper_of_a_finished_collection_or_of_none_ends_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        help_job(config(), job("collect"), {}, root=tmp_path, patience=0.0)
        assert "nothing to help with" in caplog.messages[-1]
        collect(tmp_path)
        help_job(config(), job("collect"), {}, root=tmp_path)
        assert "nothing is left to help with" in caplog.messages[-1]


def test_helpers_beside_it_and_a_kill_leave_the_same_run(alone: dict[str, Any], tmp_path: Path) -> None:
    words = ("collect", "--run-id", RUN_ID, "--overrides", *SETTINGS)
    killed = warm.start(tmp_path, *words, "--helpers", "1")
    while not list((tmp_path / "data/runs").glob("*/trajectories.jsonl")) and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    done = warm.run(tmp_path, *words, "--helpers", "1")
    assert done.returncode == 0, done.stderr
    assert content(the_run(tmp_path)) == alone


def test_a_run_of_another_configuration_is_none_to_help_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_after(2, tmp_path, monkeypatch)
    monkeypatch.setattr("r2v.stages.collection_run.time.sleep", lambda seconds: None)
    settings, folder = job("collect").load().sections(config()), tmp_path / "outputs/.artifacts/collect-0"
    for fingerprint, found in (("0", None), (the_run(tmp_path).fingerprint, RUN_ID)):
        work = Work(folder=folder, fingerprint=fingerprint, inputs={}, root=tmp_path, helping=True)
        run = under_way(settings, work)
        assert (run and run.run_id) == found
