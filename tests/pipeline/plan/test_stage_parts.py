"""Plans are exact: a stage's steps and replies in counting environments equal the planned numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from r2v.config import Config, identity, load
from r2v.data.split import assign
from r2v.data.store import TrajectoryStore
from r2v.envs.base import load_benchmark
from r2v.errors import UsageError
from r2v.evaluation.acting.acceptance import compare_policies
from r2v.evaluation.acting.acting_settings import ActingSettings
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.stage_parts import parts_of, plays_of_thresholds
from r2v.pipeline.plan.workload import Workload
from r2v.router.thresholds import MOST_PLAYED, OperatingPoint, RateSearch, search_together
from r2v.stages.train_verifier import _executed
from r2v.stages.verifier_training import VerifierSettings
from r2v.storage.artifact import Work as Attempt
from tests.pipeline.plan.counting import (
    LENGTH,
    SEEN,
    Copied,
    Replayed,
    Shared,
    collected,
    configured,
    executed,
    known,
    made,
    of_training,
    planned,
    without_weights,
)
from tests.trust import drawn

WORLDS = pytest.mark.parametrize("world", [Copied, Replayed, Shared], ids=["copied", "replayed", "shared"])
COUNTS = ("resets", "steps", "student", "drawn", "llm", "verifier")
SMALL = (
    "data.num_episodes=6",
    "data.seeds=[1,2]",
    "verifier.num_tasks=6",
    "candidates.num_tasks=3",
    "candidates.num_samples=3",
    "router.num_tasks=4",
    "router.num_calibration_tasks=3",
    "router.model=constant",
    "evaluation.num_tasks=3",
    "evaluation.seeds=[1,2]",
    "evaluation.conditions=[clean,noisy]",
)


def counts(work: Workload) -> dict[str, float]:
    return {name: getattr(work, name) for name in COUNTS}


def same(work: Workload, seen: Counter[str]) -> bool:
    """True if the counts agree after rounding, as planned ones may be means."""
    return {name: round(value, 6) for name, value in counts(work).items()} == {name: seen[name] for name in COUNTS}


def within(work: Workload, seen: Counter[str]) -> bool:
    return all(seen[name] <= value + 1e-6 for name, value in counts(work).items())


def branched(config: Config, split: str, limit: int) -> int:
    """Return the number of a split's first tasks that change no shared environment."""
    tasks = load_benchmark(config.env.benchmark, config.env.options).tasks()
    splits = assign(tasks)
    return sum(not task.mutates for task in [task for task in tasks if splits[task.task_id] == split][:limit])


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    without_weights(monkeypatch)


def run(name: str, config: Config, folder: Path, **inputs: Any) -> Counter[str]:
    return executed(job(name).load(), config, folder, **inputs)


@WORLDS
def test_a_collection_and_its_re_rolls(world: type, tmp_path: Path) -> None:
    """All its episodes succeed, so that the bound on replayed episodes is reached."""
    config = configured(world, *SMALL, "data.condition=noisy", "data.perturbation_seeds.train=[101,102]")
    seen = run("collect", config, tmp_path / "attempt")
    assert same(planned("collect", config), seen) and seen["resets"] == 12 and seen["steps"] == 12 * LENGTH
    # a hazard that never comes, so that the planned episodes are those that are played again
    again = ["data.perturbation_seeds.train=[101,102]", "perturbations.distractor.prob=1e-12"]
    config = configured(world, *SMALL, *again)
    seen = run("perturb", config, tmp_path / "perturb", collect=collected(tmp_path))
    assert same(planned("perturb", config), seen) and seen["resets"] == 24
    config = configured(world, *SMALL, "data.condition=clean")
    assert planned("perturb", config) == Workload()


@WORLDS
def test_corruptions_are_at_most_as_planned(world: type, models: None, tmp_path: Path) -> None:
    """If environments are not copied, every branch is a whole episode, from wherever it begins."""
    config = configured(world, *SMALL, "data.condition=clean", "verifier.num_corruptions=2")
    SEEN.clear()
    attempt = Attempt(folder=tmp_path, fingerprint="f" * 16, inputs={}, root=tmp_path)
    _executed(VerifierSettings.of(config), attempt, load_benchmark(config.env.benchmark))
    plan = planned("verifier", config)
    assert within(plan, SEEN) and SEEN["resets"] == plan.resets and SEEN["steps"] > plan.episodes * LENGTH
    if world is not Copied:
        assert SEEN["steps"] == plan.steps


@WORLDS
@pytest.mark.parametrize(("teacher", "continuation"), [("true", "auto"), ("true", "slm"), ("false", "teacher")])
def test_candidates(world: type, teacher: str, continuation: str, models: None, tmp_path: Path) -> None:
    """`auto` is the scripted teacher; a plan prices another one's calls."""
    chosen = [f"candidates.with_teacher={teacher}", f"candidates.continuation={continuation}"]
    config = configured(world, *SMALL, *chosen)
    seen = run("candidates", config, tmp_path / "attempt", bc=made(tmp_path / "bc"), verifier=made(tmp_path / "v"))
    assert same(planned("candidates", config), seen)
    actions = 3 + (teacher == "true")
    if world is Replayed:
        assert seen["resets"] == 3 * (1 + actions * LENGTH) and seen["steps"] == seen["resets"] * LENGTH


def test_the_acceptance_of_a_policy(models: None, tmp_path: Path) -> None:
    config = configured(Copied, *SMALL, "preference.accept_tasks=3", "preference.accept_seeds=[1,2]")
    SEEN.clear()
    attempt = Attempt(folder=tmp_path, fingerprint="f" * 16, inputs={}, root=tmp_path)
    acting = ActingSettings.of(config)
    cloned, trained = (made(tmp_path / name).file("final") for name in ("bc", "preference"))
    verdict = compare_policies(acting, attempt, cloned=cloned, trained=trained, limit=3, rule="higher")
    assert same(planned("preference", config), SEEN) and SEEN["resets"] == 2 * 3 * 2
    assert (verdict.n_tasks, verdict.difference, verdict.accepted) == (3, 0.0, False), "the same policy twice"
    always = planned("preference", configured(Copied, *SMALL, "preference.accept=always"))
    assert counts(always) == counts(Workload())


def features(config: Config, root: Path) -> tuple[Any, Counter[str]]:
    inputs = {"preference": made(root / "preference"), "verifier": made(root / "verifier")}
    seen = run("router_features", config, root / "features", **inputs)
    return made(root / "features"), seen


@WORLDS
@pytest.mark.parametrize("groups", ["[uncertainty,verifier]", "[samples,verifier]"])
def test_router_features(world: type, groups: str, models: None, tmp_path: Path) -> None:
    """The verifier scores the action before each state a second time, which its cache answers in a real run."""
    config = configured(world, *SMALL, f"router.features={groups}", "inference.num_candidates=2")
    plan = planned("router_features", config)
    _, seen = features(config, tmp_path)
    episodes = branched(config, "train", 4) + branched(config, "calibration", 3)
    seen["verifier"] -= episodes * (LENGTH - 1)
    assert same(plan, seen) and plan.episodes == episodes
    if world is not Copied:
        assert plan.steps == episodes * (LENGTH + LENGTH * LENGTH)


@WORLDS
def test_the_routers_threshold_is_at_most_as_planned(world: type, models: None, tmp_path: Path) -> None:
    config = configured(world, *SMALL, "router.model=logistic")
    rows, _ = features(config, tmp_path)
    seen = run("router", config, tmp_path / "router", router_features=rows, **_models(tmp_path))
    seen["verifier"] -= seen["verifier"]  # the cost of a state's features is cached between thresholds
    assert within(planned("router", config), seen) and seen["resets"] % 3 == 0 and seen["resets"]


def test_a_guarantee_is_played_for_and_written_beside_the_threshold(models: None, tmp_path: Path) -> None:
    config = configured(Copied, *SMALL, "router.model=logistic", "router.max_risk=0.5")
    rows, _ = features(config, tmp_path)
    seen = run("router", config, tmp_path / "router", router_features=rows, **_models(tmp_path))
    assert seen["resets"] <= planned("router", config).resets
    promised = json.loads((tmp_path / "router" / "threshold.json").read_text())["guarantee"]
    assert (promised["n"], promised["unit"], promised["alpha"], promised["delta"]) == (3, "task", 0.5, 0.1)
    assert promised["tau"] is None and promised["verdict"].startswith("infeasible: "), "three tasks show nothing"
    assert promised["risks"][0][0] == 0, "the LLM alone is the safest that there is"


def test_rounds_are_at_most_as_planned(models: None, tmp_path: Path) -> None:
    config = configured(Copied, *SMALL, "router.model=logistic", "router.rounds=1", "router.round_tasks=4")
    plan = planned("router_features", config)
    _, seen = features(config, tmp_path)
    assert all(seen[name] <= getattr(plan, name) + 1e-9 for name in ("resets", "branches", "steps") if name in seen)


def test_the_most_thresholds_that_a_search_plays() -> None:
    """By playing: thresholds of up to six operating points over many scores, for any results."""
    scores = [index / 1000 for index in range(1, 1000)]
    for points in range(7):
        for shift in (0.0, 0.3, 0.9):
            played: list[float] = []

            def play(
                asked: Sequence[tuple[str, float]], shift: float = shift, played: list[float] = played
            ) -> list[OperatingPoint]:
                played.extend(tau for _, tau in asked)
                rates = [max(0.0, 1 - tau - shift) for _, tau in asked]
                return [OperatingPoint(llm_call_rate=rate, success=0.0, cost=0.0) for rate in rates]

            targets = {("random_router", str(point)): (point + 1) / 10 for point in range(points)}
            search_together({k: RateSearch(scores, rate, tolerance=0.0) for k, rate in targets.items()}, play)
            assert len(played) + bool(points) <= plays_of_thresholds(points)
    assert plays_of_thresholds(1) == MOST_PLAYED + 2 and plays_of_thresholds(0) == 0


def _models(root: Path) -> dict[str, Any]:
    return {"preference": made(root / "preference"), "verifier": made(root / "verifier")}


def evaluated(config: Config, root: Path) -> Counter[str]:
    """Return the counts of an evaluation after a router that was trained."""
    rows, _ = features(config, root)
    run("router", config, root / "router", router_features=rows, **_models(root))
    folder = root / "evaluate"
    inputs = {"bc": of_training(root / "bc"), "router": made(root / "router"), "router_features": rows}
    return run("evaluate", config, folder, **inputs, **_models(root))


@WORLDS
def test_the_main_table_and_the_oracle(world: type, models: None, tmp_path: Path) -> None:
    methods = "evaluation.methods=[slm_only,llm_only,slm_bc_only,best_of_k,oracle_router]"
    config = configured(world, *SMALL, methods, "inference.num_candidates=2", "evaluation.budgets=[]")
    seen = evaluated(config, tmp_path)
    plan = planned("evaluate", config)
    assert same(plan, seen)
    oracle = branched(config, "evaluation", 3)
    assert plan.episodes == (4 * 3 + oracle) * 2 * 2 and plan.branches == oracle * 2 * 2 * LENGTH * 2
    assert (oracle < 3) == (world is Shared)


@WORLDS
def test_thresholds_routed_rows_frontier_and_gains(world: type, models: None, tmp_path: Path) -> None:
    """At most the planned number of thresholds is played; all else is exact."""
    budgets = "evaluation.budgets=[0.1,0.5]"
    config = configured(world, *SMALL, "evaluation.methods=[slm_only,random_router]", budgets)
    seen = evaluated(config, tmp_path)
    parts = {part.name: part.total for part in parts_of("evaluate", config, known(config))}
    assert set(parts) == {"thresholds", "main table", "frontier", "gains"}
    calibration = json.loads((tmp_path / "evaluate" / "calibration.json").read_text())
    assert set(calibration) == {f"random_router@{point}" for point in ("main", "b0.10", "b0.50")}
    exact = sum((work for name, work in parts.items() if name != "thresholds"), Workload())
    placed = parts["thresholds"].episodes
    for name, each in (("resets", 1), ("steps", LENGTH), ("student", LENGTH)):
        spent = seen[name] - getattr(exact, name)
        assert 0 < spent <= placed * each and spent % (3 * each) == 0, name
    episodes = sum(
        1
        for path in (tmp_path / "evaluate" / "episodes").rglob("*.jsonl.zst")
        if path.parts[-2] in ("noisy", "frontier")
    )
    assert episodes == 2 + 2 * 2
    stored = [TrajectoryStore(path) for path in (tmp_path / "evaluate" / "episodes").rglob("*.jsonl.zst")]
    assert sum(len(list(store.iter_episodes())) for store in stored) == sum(
        parts[name].episodes for name in ("main table", "frontier")
    )


OFF = ("oracle_tasks", "frontier_tasks", "gains_tasks")
LIMITED = zip(OFF, (2 * LENGTH, 0, LENGTH), strict=True)
"""Limits of tasks, and the branches of an episode that each leaves out."""


@pytest.mark.parametrize(
    ("limit", "each", "world"),
    [
        (limit, each, world)
        for limit, each in LIMITED
        for world in drawn([Copied, Replayed, Shared], 1, f"worlds that {limit} leaves out")
    ],
)
def test_limits_of_oracle_frontier_and_gains(limit: str, each: int, world: type, models: None, tmp_path: Path) -> None:
    """Each limit reduces the stage by the planned amount exactly: thresholds are the same on both sides."""

    def seen(name: str, *overrides: str) -> tuple[Counter[str], Workload]:
        limits = [f"evaluation.{name}=1" for name in OFF]
        config = configured(world, *SMALL, METHODS, "evaluation.budgets=[0.5]", *limits, *overrides)
        return evaluated(config, tmp_path / name), planned("evaluate", config)

    least, plan = seen("least")
    more, larger = seen("more", f"evaluation.{limit}=2")
    for name in ("resets", "steps", "student"):
        assert more[name] - least[name] == getattr(larger, name) - getattr(plan, name), name
    assert larger.episodes - plan.episodes == 2 * 2 and larger.branches - plan.branches == 2 * 2 * each


@WORLDS
def test_no_tasks_are_no_part_of_the_plan(world: type) -> None:
    none = configured(world, *SMALL, METHODS, *(f"evaluation.{name}=0" for name in OFF))
    assert {part.name for part in parts_of("evaluate", none, known(none))} == {"thresholds", "main table"}


METHODS = "evaluation.methods=[slm_only,random_router,oracle_router]"


def test_limits_are_no_part_of_a_fingerprint_unless_they_are_set() -> None:
    before = identity(Config().evaluation)
    assert not set(OFF) & before.keys()
    for name in OFF:
        assert identity(load(None, [f"evaluation.{name}=60"]).evaluation)[name] == 60
    with pytest.raises(UsageError, match="oracle_tasks.*only method"):
        load(None, ["evaluation.methods=[oracle_router]", "evaluation.oracle_tasks=0"])
