"""What the tests of playing share: models on the chain whose accuracy is known, and a small policy for the desk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from r2v.config import InferenceConfig, PerturbationsConfig, Price
from r2v.data.episode import Episode, to_dict
from r2v.envs.base import Benchmark
from r2v.envs.chain import Expert, chain_actor, right_action
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.types import Reply, Request, ScoreRequest
from r2v.llm.waves import Waves
from r2v.randomness import uniform
from r2v.rollout.actors import Actor, Routed, Side, Single, Turn
from r2v.rollout.session import Play, World, play_many

SLM_PRICE = Price(input=0.1, output=0.4, seconds_per_call=0.02, seconds_per_token=0.001)
LLM_PRICE = Price(input=3.0, output=12.0, seconds_per_call=0.6, seconds_per_token=0.02)


def side(waves: Waves, speak: Expert, name: str, max_batch: int = 256) -> Side:
    price = SLM_PRICE if name == "slm" else LLM_PRICE
    return Side(waves.model(ScriptedBackend(speak, name=name, price=price, max_batch=max_batch)), price, name, 24)


@dataclass(frozen=True)
class Stage:
    """A world with both models in it."""

    waves: Waves
    world: World
    slm: Side
    llm: Side

    @property
    def small(self) -> Single:
        return Single(self.slm, "slm")

    @property
    def large(self) -> Single:
        return Single(self.llm, "llm_fallback")

    def routed(self, gate: Callable[[Turn, Reply], float], threshold: float, max_llm_calls: int = 1000) -> Routed:
        async def opinion(turn: Turn, proposal: Reply) -> float:
            return gate(turn, proposal)

        return Routed(self.slm, self.llm, opinion, threshold, max_llm_calls)

    def play(self, plays: Sequence[Play], actor: Actor) -> list[Episode]:
        return play_many(self.waves, self.world, plays, actor)


def stage(
    benchmark: Benchmark,
    slm: Expert,
    llm: Expert,
    *,
    waves: Waves | None = None,
    max_batch: int = 256,
    perturbations: PerturbationsConfig | None = None,
    max_steps: int = 16,
) -> Stage:
    waves = waves or Waves(workers=1)
    world = World(benchmark, perturbations or PerturbationsConfig(), InferenceConfig(max_steps=max_steps))
    return Stage(waves, world, side(waves, slm, "slm", max_batch), side(waves, llm, "llm", max_batch))


def chain_stage(benchmark: Benchmark, slm: tuple[float, float | None], llm: float, **options: Any) -> Stage:
    """Models that are right with these chances (easy, hard)."""
    return stage(benchmark, chain_actor(*slm), chain_actor(llm), **options)


def plays(benchmark: Benchmark, count: int, **fields: Any) -> list[Play]:
    return [Play(task=task, seed=1, split="evaluation", **fields) for task in benchmark.tasks()[:count]]


def random_gate(turn: Turn, proposal: Reply) -> float:
    """A coin that belongs to the step: at threshold 1-q it asks the LLM with chance q."""
    return uniform(turn.seed, turn.task_id, turn.step, "router")


def looks_hard(turn: Turn, proposal: Reply) -> float:
    """The perfect router of the two-difficulty chain: it reads what the door says."""
    return float(json.loads(turn.observations[-1])["look"] == "hard")


async def perfect_verifier(request: ScoreRequest) -> float:
    return float(request.action == right_action(request.messages[-1].content))


def clumsy(expert: Expert, rate: float) -> Expert:
    """The expert with a share of its actions replaced by asking for the page again."""

    def speak(request: Request) -> str:
        return '{"tool":"refresh"}' if uniform("clumsy", *request.key) < rate else expert(request)

    return speak


def played(episode: Episode) -> Any:
    """An episode without what tells how it was decided."""
    record = to_dict(episode)
    record.pop("method")
    for step in record["steps"]:
        step.pop("decision")
    return record
