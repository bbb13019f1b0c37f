"""The main job end to end, as a user runs it: finished, repeated, changed, checked, tampered with and killed."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from r2v.config import Config, load
from r2v.config.methods import ROUTERS
from r2v.data.split import assign
from r2v.envs.base import load_benchmark
from r2v.evaluation import calibration
from r2v.evaluation.acting.calibration import ExecutedPlays
from r2v.evaluation.calibration import Plays, place_thresholds
from r2v.pipeline.graph import as_configured
from r2v.pipeline.inputs import published
from r2v.pipeline.jobs import job
from r2v.pipeline.run import run_job
from r2v.rollout.session import EpisodeSpec, RolloutWorld, Session
from r2v.router.thresholds import Point
from r2v.storage.compression import LINES
from tests.trust import MICRO
from tests.trust.alter import hard_copy, read_records, text_of, write_records
from tests.warm import run, start

TABLES = ("main_table.csv", "comparisons.csv", "per_seed.csv", "frontier.csv", "llm_summary.json", "main_table.tex")
JOBS = (
    "collect",
    "perturb",
    "bc",
    "verifier",
    "candidates",
    "preference",
    "router_features",
    "router",
    "evaluate",
    "ablations",
)


def r2v(folder: Path, *arguments: str, code: int = 0) -> str:
    """Return the output of a command, which must end with this code."""
    done = run(folder, *arguments)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def hashes(folder: Path) -> dict[str, dict[str, str]]:
    """Return every artifact's content hashes, by job and fingerprint."""
    found = sorted((folder / "outputs" / ".artifacts").glob("*/artifact.json"))
    return {path.parent.name: json.loads(path.read_text())["files"] for path in found}


@pytest.fixture
def copy(micro_run: Path, tmp_path: Path) -> Iterator[Path]:
    yield hard_copy(micro_run, tmp_path / "copy")


def test_everything_the_seed_names_is_there(micro_run: Path) -> None:
    tables = micro_run / "results" / "micro" / "structured_results"
    assert all((tables / name).stat().st_size for name in TABLES)
    assert (micro_run / "results" / "ablations" / "micro" / "structured_results" / "ablations.csv").stat().st_size
    assert (micro_run / "data" / "micro" / "trajectories" / "trajectories.jsonl").stat().st_size
    assert (micro_run / "outputs" / "micro" / "policy" / "bc" / "final").is_dir()
    assert {name.rsplit("-", 1)[0] for name in hashes(micro_run)} == set(JOBS)


def test_every_episode_replays_and_every_table_is_rebuilt(micro_run: Path) -> None:
    said = r2v(micro_run, "verify-results", "results/micro")
    setup = json.loads((micro_run / "results" / "micro" / "setup.json").read_text())
    cells = sum(1 for _ in (micro_run / "results" / "micro" / "episodes").rglob("*.jsonl.zst"))
    assert f"{cells * 4 * len(setup['seeds'])} episodes replayed" in said and "identical" in said


def test_a_flipped_success_is_found_and_named(copy: Path) -> None:
    path = copy / "results" / "micro" / "episodes" / "noisy" / "r2v.jsonl.zst"
    episode, *others = read_records(path)
    write_records(path, [{**episode, "success": not episode["success"]}, *others])
    said = r2v(copy, "verify-results", "results/micro", code=3)
    assert episode["episode_id"] in said and "executed success" in said


def test_a_second_run_does_nothing(micro_run: Path) -> None:
    said = r2v(micro_run, "run", "--config", str(MICRO))
    assert re.findall("^stage up to date: stage=(.*)$", said, re.M) == list(JOBS)


def test_a_router_change_reruns_the_router_and_what_follows(copy: Path) -> None:
    said = r2v(copy, "run", "--config", str(MICRO), "--overrides", "router.l2=0.5")
    assert set(re.findall(r"^stage done: stage=(\w+)", said, re.M)) & set(JOBS) == {"router", "evaluate", "ablations"}


def test_ablation_none_reproduces_the_main_run(micro_run: Path) -> None:
    table = micro_run / "results" / "ablations" / "micro" / "structured_results" / "ablations.csv"
    with table.open(newline="") as file:
        none = next(row for row in csv.DictReader(file) if row["name"] == "none")
    assert (none["delta"], none["delta_ci"], none["p_value"]) == ("0", "[0, 0]", "1")
    assert (none["cost_delta"], none["retrained_stages"]) == ("0", "none")
    played = [
        path
        for name in hashes(micro_run)
        if name.startswith("evaluate-")
        for path in [micro_run / "outputs" / ".artifacts" / name / "episodes" / "noisy" / "r2v.jsonl.zst"]
    ]
    main = (micro_run / "results" / "micro" / "episodes" / "noisy" / "r2v.jsonl.zst").read_bytes()
    assert sum(path.exists() and path.read_bytes() == main for path in played) == 2, "the main run's, and none's own"


OTHER_SIZES = ("--overrides", "rollout.workers=4", "rollout.max_conversations=7", "rollout.batch_size=5")
PLAYED = ("collect", "perturb", "candidates", "evaluate", "ablations")
"""Stages that train nothing: only their artifacts are made again here."""


def test_on_other_workers_and_killed_as_it_plays_it_ends_in_the_same_content(micro_run: Path, copy: Path) -> None:
    """Episodes are deleted and played again with other workers, conversations and batches, killed twice meanwhile."""
    for path in (copy / "outputs" / ".artifacts").iterdir():
        if path.name.rpartition("-")[0] in PLAYED:
            shutil.rmtree(path)
    plays = copy / "outputs" / ".episodes"
    shutil.rmtree(plays)
    for _ in range(2):
        before, process = written_in(plays), start(copy, "run", "--config", str(MICRO), *OTHER_SIZES)
        while written_in(plays) <= before and process.poll() is None:
            time.sleep(0.05)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it played"
    said = r2v(copy, "run", "--config", str(MICRO), *OTHER_SIZES)
    assert "stage done: stage=evaluate" in said
    assert hashes(copy) == hashes(micro_run)


def written_in(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # leases come and go meanwhile
                size += Path(parent, name).stat().st_size
    return size


@pytest.mark.whole
def test_with_other_workers_and_killed_anywhere_it_ends_in_the_same_content(micro_run: Path, tmp_path: Path) -> None:
    """From nothing, in another folder; killed four times and typed once more."""
    command = ("run", "--config", str(MICRO), *OTHER_SIZES)
    draw = random.Random(7)
    for _ in range(4):
        process = start(tmp_path, *command)
        time.sleep(draw.uniform(1, 15))
        process.kill()
        process.communicate()  # until all of it has ended
    r2v(tmp_path, *command)
    assert hashes(tmp_path) == hashes(micro_run)


def test_an_evaluation_on_training_tasks_is_refused(copy: Path) -> None:
    results = copy / "results" / "micro"
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    said = r2v(copy, "evaluate", "--config", str(MICRO), "--overrides", "data.split_seed=1", code=3)
    last = said.strip().splitlines()[-1]
    assert "is to be evaluated but was learnt from" in last and "desk-" in last
    after = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    assert after == before != {}, "the good results are still published"


def test_seeds_results_manager_block_runs_on_the_results(copy: Path) -> None:
    from r2v.utils.results import ResultsManager

    tables = copy / "results" / "micro" / "structured_results"
    before = {path.name: path.read_bytes() for path in tables.iterdir()}
    manager = ResultsManager(tables)
    manager.generate_main_table_csv()
    manager.generate_latex_table()
    manager.generate_llm_summary()
    assert {path.name: path.read_bytes() for path in tables.iterdir()} == before


@pytest.fixture
def opened() -> Iterator[set[Path]]:
    """Yield the set of all files that this process opens meanwhile."""
    paths: set[Path] = set()
    listening = [True]

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and listening and isinstance(arguments[0], (str, os.PathLike)):
            paths.add(Path(arguments[0]).absolute())

    sys.addaudithook(note)  # an audit hook cannot be removed
    yield paths
    listening.clear()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[EpisodeSpec]:
    """Return the list of all episodes that this process begins to play meanwhile, with any model."""
    specs: list[EpisodeSpec] = []
    start = RolloutWorld.start

    def noting(world: RolloutWorld, spec: EpisodeSpec) -> Session:
        specs.append(spec)
        return start(world, spec)

    monkeypatch.setattr(RolloutWorld, "start", noting)
    return specs


SHORT = (
    "training.num_epochs=1",
    "training.bc.max_examples=40",
    "verifier.num_tasks=6",
    "candidates.num_tasks=3",
    "router.num_tasks=6",
    "router.num_calibration_tasks=3",
    "router.round_tasks=3",
    "preference.accept_tasks=3",
    "evaluation.num_tasks=2",
    "evaluation.conditions=[noisy]",
    "evaluation.bootstrap=50",
)
"""Overrides of a small run: these tests check which files a stage reads, not how well it learns."""


def of_evaluation(config: Config) -> set[str]:
    """Return the tasks reserved for evaluation, whether this configuration plays them or not."""
    tasks = load_benchmark(config.env.benchmark, config.env.options).tasks()
    splits = assign(tasks, by=config.data.split_by, seed=config.data.split_seed)
    return {task for task, split in splits.items() if split in ("evaluation", "heldout")}


def force(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Force a job to run again on its inputs, with nothing played before; return its configuration."""
    shutil.rmtree(folder / "outputs" / ".episodes")
    monkeypatch.chdir(folder)
    config = load(MICRO, SHORT)
    row = as_configured(config, job(name))
    run_job(config, row, {name: published(config, name) for name in row.inputs}, force=True)
    return config


@pytest.mark.parametrize("name", [name for name in JOBS[: JOBS.index("evaluate")] if name != "case_support"])
def test_what_is_learnt_or_tuned_opens_and_plays_no_evaluation_task(
    name: str, copy: Path, opened: set[Path], started: list[EpisodeSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = json.loads((copy / "results" / "micro" / "setup.json").read_text())
    opened.clear()
    forbidden, here = of_evaluation(force(copy, name, monkeypatch)), copy.resolve()
    assert forbidden > {task for tasks in setup["tasks"].values() for task in tasks} != set()
    inside = {path.relative_to(here) for path in map(Path.resolve, opened) if path.is_relative_to(here)}
    made = [path.parts[2] for path in inside if path.parts[:2] == ("outputs", ".artifacts")]
    rooms = {name.strip(".").rsplit("-", 1)[0] for name in made}
    assert {name, *job(name).inputs} >= rooms > set(), "an artifact of none but what it reads"
    assert not [path for path in inside if path.parts[0] == "results"]
    for path in (copy / path for path in inside):
        if path.name.endswith((".json", *LINES)) and path.exists():
            assert not set(re.findall(r'"(desk-[0-9]+)["/#]', text_of(path).decode())) & forbidden, path
    assert {spec.split for spec in started} <= {"train", "calibration"}
    assert not {spec.task.task_id for spec in started} & forbidden
    assert started or name == "bc", "all others play"


def test_thresholds_of_every_method_are_placed_on_calibration_tasks_alone(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[tuple[set[str], list[EpisodeSpec]]] = []

    def noting(plays: Plays, targets: dict[Point, float], **how: Any) -> Any:
        assert isinstance(plays, ExecutedPlays)
        placed.append(({method for method, _ in targets}, [*plays.specs]))
        return place_thresholds(plays, targets, **how)

    monkeypatch.setattr(calibration, "place_thresholds", noting)
    forbidden = of_evaluation(force(copy, "evaluate", monkeypatch))
    assert set[str]().union(*(methods for methods, _ in placed)) == set(load(MICRO).evaluation.methods) & set(ROUTERS)
    for _, specs in placed:
        assert {spec.split for spec in specs} == {"calibration"}
        assert not {spec.task.task_id for spec in specs} & forbidden
