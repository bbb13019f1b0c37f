"""The perturb stage on a really collected run: bytes kept, twins counted, interruption and order without effect."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from r2v.config import Config, load
from r2v.data.episode import Episode, to_line
from r2v.data.registry import DataRegistry
from r2v.data.store import StoredEpisodes, TrajectoryStore, write_episodes
from r2v.envs.base import load_benchmark
from r2v.errors import EmptyResult, InputError
from r2v.perturb.offline import Report
from r2v.pipeline.inputs import published
from r2v.pipeline.jobs import job
from r2v.pipeline.run import run_job
from r2v.stages import perturb
from r2v.storage.artifact import Artifact, Work
from tests import warm
from tests.trust.alter import hard_copy

SMALL = ("env.options.num_tasks=36", "env.options.num_heldout=0", "data.seeds=[1,2]", "rollout.workers=1")
FAULTLESS = ("env.options.slips=0.0", "env.options.weakness=0.0")


def _collect(root: Path, *overrides: str) -> Artifact:
    return run_job(load(None, [*SMALL, *overrides]), job("collect"), {}, root=root).artifact


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkout with one collected run, some of whose episodes failed."""
    place = tmp_path_factory.mktemp("root")
    _collect(place, "env.options.slips=0.1")
    return place


def _config(*overrides: str) -> Config:
    return load(None, [*SMALL, "env.options.slips=0.1", *overrides])


def _perturb(root: Path, *overrides: str) -> Artifact:
    config = _config(*overrides)
    return run_job(config, job("perturb"), {"collect": published(config, "collect", root)}, root=root).artifact


def _collected(root: Path) -> list[Episode]:
    config = _config()
    return list(DataRegistry(root / "data").iter_episodes(published(config, "collect", root).summary["run_ids"]))


def _report(artifact: Artifact) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(artifact.file("perturb_report.json").read_text())
    return report


OFF = tuple(
    f"perturbations.{name}.prob=0.0"
    for name in ("tool_error", "stale_observation", "partial_observation", "distractor", "prompt_injection")
)


@pytest.mark.parametrize("overrides", [("data.condition=clean",), OFF, (*OFF, "perturb.include_clean=false")])
def test_with_nothing_to_perturb_the_bytes_are_kept(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    collected = _collect(tmp_path, *FAULTLESS)
    config = load(None, [*SMALL, *FAULTLESS, *overrides])
    made = run_job(config, job("perturb"), {"collect": collected}, root=tmp_path).artifact
    run = DataRegistry(tmp_path / "data").get(collected.summary["run_ids"][0])
    assert made.file("trajectories.jsonl").read_bytes() == run.trajectories.read_bytes()
    assert _report(made)["hits"] == {}


def test_clean_episodes_are_kept_byte_for_byte_and_failures_left_out(root: Path) -> None:
    made, collected = _perturb(root), _collected(root)
    lines = made.file("trajectories.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["construction"] == "native"]
    assert kept == [to_line(episode) for episode in collected if episode.success]
    assert _report(made)["read"] == {"failed": len(collected) - len(kept), "success": len(kept)}
    assert 0 < len(kept) < len(collected)


def test_twins_are_valid_counted_and_sorted(root: Path) -> None:
    made = _perturb(root)
    episodes, report = list(StoredEpisodes(made.file("trajectories.jsonl"))), _report(made)
    ids = [episode.episode_id for episode in episodes]
    assert ids == sorted(set(ids))
    assert Counter(episode.construction for episode in episodes) == report["made"]
    assert set(report["made"]) == {"native", "annotate", "insert", "reroll"}
    assert all(episode.success and episode.metadata.split == "train" for episode in episodes)
    twins = [episode for episode in episodes if episode.construction != "native"]
    assert {twin.parent_episode_id for twin in twins} <= set(ids)
    assert {(twin.condition, twin.perturbation_seed) for twin in twins} == {("noisy", 101)}
    hits = Counter(one.category for episode in episodes for step in episode.steps for one in step.perturbations)
    assert hits == report["hits"] and set(hits) == {
        "tool_error",
        "partial_observation",
        "distractor",
        "prompt_injection",
    }
    assert {name: sum(steps.values()) for name, steps in report["hits_by_step"].items()} == report["hits"]
    for construction in ("annotate", "insert"):
        lost = report["rejected"][construction]
        refused = sum(count for why, count in lost.items() if why != "lost_support")
        assert report["made"][construction] + refused == report["read"]["success"]
    rerolled = report["made"]["reroll"] + sum(report["rejected"]["reroll"].values())
    assert rerolled == report["read"]["success"]


def test_no_two_episodes_teach_the_same(root: Path) -> None:
    episodes = list(StoredEpisodes(_perturb(root).file("trajectories.jsonl")))
    read = Counter(
        (
            e.metadata.task_id,
            e.metadata.seed,
            e.metadata.goal,
            tuple((s.observation.raw_text, s.action.raw_text) for s in e.steps),
        )
        for e in episodes
    )
    assert max(read.values()) == 1
    assert _report(_perturb(root))["rejected"]["reroll"]["duplicate"] > 0


def test_every_training_seed_makes_its_own_twins(root: Path) -> None:
    made = _perturb(root, "data.perturbation_seeds.train=[101,102]", "perturb.constructions=[annotate]")
    seeds = Counter(episode.perturbation_seed for episode in list(StoredEpisodes(made.file("trajectories.jsonl"))))
    assert min(seeds[101], seeds[102]) > 25 and set(seeds) == {None, 101, 102}


def test_order_and_sharding_have_no_effect(root: Path, tmp_path: Path) -> None:
    sections = perturb.PerturbSettings.of(_config())
    benchmark, episodes = load_benchmark("desk", sections.env.options), _collected(root)

    def lines(name: str, part: list[Episode]) -> list[str]:
        write_episodes(tmp_path / f"{name}.jsonl", part)
        return [
            to_line(episode)
            for episode in perturb.training_set(
                sections,
                benchmark,
                TrajectoryStore(tmp_path / f"{name}.jsonl"),
                Report(),
                _attempt(tmp_path / name),
            )
        ]

    whole = sorted(lines("whole", episodes))
    assert sorted(lines("backwards", episodes[::-1])) == whole
    assert sorted(lines("even", episodes[::2]) + lines("odd", episodes[1::2])) == whole


def test_another_process_makes_the_same_content(root: Path, tmp_path: Path) -> None:
    made = _perturb(root)
    program = (
        "import sys; from pathlib import Path; from r2v.storage.artifact import build; "
        "from r2v.config import load; from r2v.pipeline.inputs import published; from r2v.stages import perturb\n"
        "config = load(None, sys.argv[3:]); root = Path(sys.argv[1])\n"
        "inputs = {'collect': published(config, 'collect', root)}\n"
        "with build(Path(sys.argv[2]), 'perturb', 'again', 's', '', inputs, root) as work:\n"
        "    perturb.STAGE.run(perturb.PerturbSettings.of(config), work)\n"
    )
    subprocess.run(
        [warm.python(), "-c", program, root, tmp_path, *SMALL, "env.options.slips=0.1"],
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
    )
    for name in ("trajectories.jsonl", "perturb_report.json"):
        assert (tmp_path / "perturb-again" / name).read_bytes() == made.file(name).read_bytes()


def _attempt(root: Path) -> Work:
    """Return an attempt in a checkout of its own, without episodes."""
    return Work(folder=root / "outputs/.artifacts/perturb-0", fingerprint="0", inputs={}, root=root)


def _played(work: Work) -> int:
    """Return the number of lines of the attempt's episodes."""
    return sum(path.read_bytes().count(b"\n") for path in (work.root / "outputs/.episodes/perturb-0").glob("*.jsonl"))


def test_what_the_teacher_was_paid_for_is_not_asked_again(root: Path, tmp_path: Path) -> None:
    sections = perturb.PerturbSettings.of(_config())
    benchmark = load_benchmark("desk", sections.env.options)
    parents = [(e.metadata.task_id, e.metadata.seed) for e in _collected(root)]
    work, other = _attempt(tmp_path / "in two parts"), _attempt(tmp_path / "at once")
    some = list(perturb.reroll(sections, benchmark, parents[:7], [101], work))
    assert len(some) == _played(work) == 7
    episodes = list(perturb.reroll(sections, benchmark, parents, [101], work))
    assert len(episodes) == _played(work) == len(parents), "each was played once"
    whole = perturb.reroll(sections, benchmark, parents[::-1], [101], other)
    assert list(map(to_line, episodes)) == list(map(to_line, whole))


def test_a_training_set_of_other_constructions_asks_for_no_episode_twice(root: Path, tmp_path: Path) -> None:
    copy = hard_copy(root, tmp_path / "root")
    _perturb(copy, "perturb.constructions=[reroll]")
    made = _perturb(copy, "perturb.constructions=[annotate,reroll]")
    assert "reroll" in _report(made)["made"]
    assert not list((copy / "outputs/.episodes" / made.folder.name).glob("*.jsonl"))


def test_an_empty_result_says_where_it_went(root: Path) -> None:
    with pytest.raises(EmptyResult, match=r'read .*"success": \d+.*untouched'):
        _perturb(root, *OFF, "perturbations.distractor.prob=1e-9", "perturb.include_clean=false")


def test_episodes_of_another_split_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only train tasks may be used here"):
        _perturb(root, "data.split_seed=5")


def test_two_episodes_of_one_id_are_refused(root: Path, tmp_path: Path) -> None:
    episode = _collected(root)[0]
    with pytest.raises(InputError, match=f"two episodes are called {episode.episode_id}"):
        perturb.write_sorted(tmp_path / "out.jsonl", [episode, episode], tmp_path / "draft.jsonl")
