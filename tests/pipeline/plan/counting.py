"""An environment and models that count their calls, for plans that must be exact.

Episodes have as many steps as their corridor has doors, whatever the actions; the LLM is always right and the small
policy never, so they differ at every state, and K samples differ from one another and from the greedy action.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from r2v.config import Config, load
from r2v.data.registry import DataRegistry
from r2v.envs.base import Task, load_benchmark
from r2v.envs.chain import ChainBenchmark, ChainEnvironment, call
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.types import Request, ScoreReply, ScoreRequest
from r2v.pipeline.plan.benchmark_facts import BenchmarkFacts, facts_of
from r2v.pipeline.plan.stage_parts import parts_of
from r2v.pipeline.plan.workload import Workload
from r2v.rollout.actors import PricedModel
from r2v.storage.artifact import ATTEMPT
from r2v.storage.artifact import Work as Attempt
from tests.chains import SLM_PRICE

LENGTH = 4
_HAZARDS = ("tool_error", "stale_observation", "partial_observation", "distractor", "prompt_injection")
"""Default perturbations; one that answers in the environment's place keeps a step from it."""
SEEN: Counter[str] = Counter()
"""Counts since the last `clear`."""


class _Environment(ChainEnvironment):
    def reset(self, *, seed: int, task: Task) -> Any:
        SEEN["resets"] += 1
        return super().reset(seed=seed, task=task)

    def step(self, action: str) -> Any:
        SEEN["steps"] += 1
        return super().step(action)


class Copied(ChainBenchmark):
    """Corridors that count, and can be copied."""

    def __init__(self, *, num_tasks: int = 60) -> None:
        super().__init__(num_tasks=num_tasks, length=LENGTH, p_easy=1.0)

    def make(self) -> ChainEnvironment:
        return _Environment()

    def expert(self, request: Request) -> str:
        SEEN["llm"] += 1
        return super().expert(request)


class Replayed(Copied):
    """Corridors whose environments cannot be copied."""

    capabilities = replace(Copied.capabilities, snapshot=False)


class Shared(Replayed):
    """Corridors of one house, of which every other task paints a door: played, never branched."""

    capabilities = replace(Replayed.capabilities, parallel=False)

    def tasks(self) -> list[Task]:
        return [replace(task, mutates=index % 2 == 0) for index, task in enumerate(super().tasks())]


class _Student(ScriptedBackend):
    def __init__(self) -> None:
        super().__init__(lambda request: call(f"wrong {request.key}"), name="slm", price=SLM_PRICE)

    def answer(self, requests: Sequence[Request]) -> Any:
        SEEN["student"] += len(requests)
        SEEN["drawn"] += sum(request.num_samples for request in requests)
        return super().answer(requests)


async def _score(request: ScoreRequest) -> ScoreReply:
    SEEN["verifier"] += 1
    return ScoreReply(score=0.5)


def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every stage play with this module's student and verifier, which cache nothing."""
    from r2v.evaluation.acting import methods
    from r2v.rollout import model_factory

    def policy(
        policy: Any, weights: Any, cost: Any, inference: Any, rollout: Any, waves: Any, *_: Any, **__: Any
    ) -> PricedModel:
        return PricedModel(waves.model(_Student()), SLM_PRICE, "slm", 24)

    for module in (methods, model_factory):
        monkeypatch.setattr(module, "priced_policy", policy)
        monkeypatch.setattr(module, "verifier_scorer", lambda *_: _score)


def configured(benchmark: type, *overrides: str) -> Config:
    return load(
        None,
        [
            f"env.benchmark={benchmark.__module__}:{benchmark.__name__}",
            "policy.tools=none",
            f"inference.max_steps={LENGTH}",
            "inference.temperature=1.0",
            "candidates.temperature=1.0",
            "evaluation.bootstrap=100",
            *(f"perturbations.{name}.prob=0" for name in _HAZARDS),
            *overrides,
        ],
    )


def known(config: Config) -> BenchmarkFacts:
    return facts_of(config, load_benchmark(config.env.benchmark, config.env.options))


def planned(stage: str, config: Config) -> Workload:
    """Return the sum of a stage's parts."""
    return sum((part.total for part in parts_of(stage, config, known(config))), Workload())


def executed(stage: Any, config: Config, folder: Path, **inputs: Any) -> Counter[str]:
    """Return the counts of a stage that runs on these inputs, in a folder of its own."""
    SEEN.clear()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ATTEMPT).write_text("{}")
    stage.run(stage.sections(config), Attempt(folder=folder, fingerprint="f" * 16, inputs=inputs, root=folder.parent))
    return Counter(SEEN)


def made(folder: Path, **summary: Any) -> Any:
    """Return a stand-in for an artifact, whose files are those of the folder."""
    for name in ("final", "folds/0", "folds/1"):  # weights that no stage reads
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{folder.name} {name}")
    return SimpleNamespace(folder=folder, files={}, file=folder.joinpath, summary=summary)


def collected(root: Path) -> Any:
    """Return the artifact of the latest collection."""
    return made(root / "collect", run_ids=[DataRegistry(root / "data").query()[-1].run_id])


def of_training(folder: Path) -> Any:
    """Return a policy that was cloned from no task."""
    found = made(folder)
    (folder / "tasks.json").write_text(json.dumps([]))
    return found
