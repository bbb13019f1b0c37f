"""Section 6's Python blocks, word for word, over runs of several models; the desk's episodes stand in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from r2v.data import DataRegistry, Episode, TrajectoryStore

from . import seed
from .workspace import play

NAMED = re.findall(r"\w+_\w+_[\w.-]+_\d{8}T\d{6}", seed.block("Run ID format", ""))
GPT, CLAUDE = NAMED
LATER = "webarena_openai_gpt-4o_20260301T120000"
RIVAL = "webarena_anthropic_claude-3-5-sonnet_20260302T120000"
PARTIAL = "webarena_openai_gpt-4o_20260303T120000"


def _file(root: Path, run_id: str, episodes: list[Episode], *, missing: int = 0) -> str:
    """Put episodes into a run of this name, begun at the time in its name; return the name it was given."""
    benchmark, provider, model, time = run_id.split("_")
    begun = datetime.strptime(time, "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    registry = DataRegistry(root / "data", now=lambda: begun)
    with registry.begin_run(
        benchmark=benchmark, provider=provider, model_name=model, fingerprint=run_id, config={}
    ) as run:
        by = {"run_id": run.run_id, "teacher_model": model, "teacher_provider": provider}
        for episode in episodes:
            run.store.append(replace(episode, metadata=replace(episode.metadata, **by)))
        run.finish(expected=len(episodes) + missing)
    return run.run_id


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make runs of two models on one benchmark, one of them twice over shared tasks and once cut short; and of another
    benchmark."""
    root = tmp_path_factory.mktemp("runs")
    first, worse = play("train", 9), play("train", 6, slips=0.5)
    plan = [
        (GPT, first[:6], 0),
        (CLAUDE, first[:2], 0),
        (LATER, first[4:], 0),
        (RIVAL, worse, 0),
        (PARTIAL, first[:1], 5),
    ]
    assert [_file(root, name, episodes, missing=missing) for name, episodes, missing in plan] == [
        name for name, _, _ in plan
    ]
    return root


@pytest.fixture
def inside(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change the current folder to the checkout."""
    monkeypatch.chdir(root)
    yield root


def _type(text: str, names: dict[str, Any]) -> dict[str, Any]:
    """Type a Python block; add the one import that the seed leaves out."""
    exec(compile(f"from pathlib import Path\n{text}", "seed_003", "exec"), names)
    return names


def test_the_run_ids_of_the_seed_are_made(root: Path) -> None:
    assert len(NAMED) == 2
    for run_id in NAMED:
        assert (root / "data" / "runs" / run_id / "run_manifest.json").exists()


def test_inspect_the_registry(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = _type(seed.block("Inspect the registry", "python"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in printed[1:6]] == [
        [GPT, "done", "6"],
        [CLAUDE, "done", "2"],
        [LATER, "done", "5"],
        [RIVAL, "done", "6"],
        [PARTIAL, "partial", "1"],
    ]
    rates = [f"{m.n_success / m.n_episodes:.2%}" for m in names["runs"]]
    assert printed[6:] == [f"{GPT} 6 {rates[0]}", f"{LATER} 5 {rates[1]}", f"data/runs/{LATER}"]
    assert names["latest"].output_dir == Path("data/runs") / LATER


def test_combine_datasets(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = _type(seed.block("Combine datasets from multiple models", "python", 0), {})
    assert names["run_ids"] == [GPT, LATER, RIVAL]
    different = {
        (e.metadata.task_id, e.action_hash)
        for run in names["all_webarena"]
        for e in TrajectoryStore(run.trajectories).iter_episodes()
    }
    episodes = names["episodes"]
    assert 9 <= len(episodes) == len(different) < 6 + 5 + 6
    assert capsys.readouterr().out == f"Merged {len(episodes)} unique episodes from 3 runs\n"
    assert len({episode.episode_id for episode in episodes}) == len(episodes)
    assert len(Path("data/merged/webarena_all.jsonl").read_text().splitlines()) == len(episodes)
    seen = []
    _type(
        seed.block("Combine datasets from multiple models", "python", 1).replace("...\n", "seen.append(episode)\n"),
        {**names, "seen": seen},
    )
    assert [episode.action_hash for episode in seen] == [episode.action_hash for episode in episodes]
    models = {(e.metadata.run_id, e.metadata.teacher_model, e.metadata.teacher_provider) for e in seen}
    assert models == {(GPT, "gpt-4o", "openai"), (LATER, "gpt-4o", "openai"), (RIVAL, "claude-3-5-sonnet", "anthropic")}


def test_the_versioning_fields_are_in_every_line(root: Path) -> None:
    table = seed.TEXT.partition("### EpisodeMetadata versioning fields")[2].partition("## 7.")[0]
    fields = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", table, re.M))
    assert [*fields] == ["run_id", "teacher_model", "teacher_provider"]
    lines = (root / "data" / "runs" / fields["run_id"] / "trajectories.jsonl").read_text().splitlines()
    for line in lines:
        assert fields.items() <= json.loads(line)["metadata"].items()
