"""Models for tests of rollouts: chain players of known accuracy, and a small policy for the desk."""

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
from r2v.llm.types import Reply, Request, ScoreReply, ScoreRequest
from r2v.llm.waves import Waves
from r2v.randomness import uniform
from r2v.rollout.actors import Actor, GreedyActor, PricedModel, Routed, StepView
from r2v.rollout.bill import StepBill
from r2v.rollout.session import EpisodeSpec, RolloutWorld, play_many

SLM_PRICE = Price(input=0.1, output=0.4, seconds_per_call=0.02, seconds_per_token=0.001)
LLM_PRICE = Price(input=3.0, output=12.0, seconds_per_call=0.6, seconds_per_token=0.02)


def side(waves: Waves, speak: Expert, name: str, max_batch: int = 256) -> PricedModel:
    price = SLM_PRICE if name == "slm" else LLM_PRICE
    return PricedModel(
        waves.model(ScriptedBackend(speak, name=name, price=price, max_batch=max_batch)), price, name, 24
    )


@dataclass(frozen=True)
class Stage:
    """An environment with both models."""

    waves: Waves
    world: RolloutWorld
    slm: PricedModel
    llm: PricedModel

    @property
    def small(self) -> GreedyActor:
        return GreedyActor(self.slm, "slm")

    @property
    def large(self) -> GreedyActor:
        return GreedyActor(self.llm, "llm_fallback")

    def routed(self, gate: Callable[[StepView, Reply], float], threshold: float, max_llm_calls: int = 1000) -> Routed:
        async def opinion(view: StepView, proposal: Reply) -> tuple[float, StepBill]:
            return gate(view, proposal), StepBill()

        return Routed(self.slm, self.llm, opinion, threshold, max_llm_calls)

    def play(self, specs: Sequence[EpisodeSpec], actor: Actor) -> list[Episode]:
        return play_many(self.waves, self.world, specs, actor)


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
    world = RolloutWorld(benchmark, perturbations or PerturbationsConfig(), InferenceConfig(max_steps=max_steps))
    return Stage(waves, world, side(waves, slm, "slm", max_batch), side(waves, llm, "llm", max_batch))


def chain_stage(benchmark: Benchmark, slm: tuple[float, float | None], llm: float, **options: Any) -> Stage:
    """Return a stage with models that are right with these probabilities (easy, hard)."""
    return stage(benchmark, chain_actor(*slm), chain_actor(llm), **options)


def specs(benchmark: Benchmark, count: int, **fields: Any) -> list[EpisodeSpec]:
    return [EpisodeSpec(task=task, seed=1, split="evaluation", **fields) for task in benchmark.tasks()[:count]]


def random_gate(view: StepView, proposal: Reply) -> float:
    """Return a coin that belongs to the step: at threshold 1-q it defers to the LLM with probability q."""
    return uniform(view.seed, view.task_id, view.step, "router")


def looks_hard(view: StepView, proposal: Reply) -> float:
    """Return the score of a perfect router of the two-difficulty chain: it reads the door's text."""
    return float(json.loads(view.observations[-1])["look"] == "hard")


async def perfect_verifier(request: ScoreRequest) -> ScoreReply:
    return ScoreReply(score=float(request.action == right_action(request.messages[-1].content)))


def clumsy(expert: Expert, rate: float) -> Expert:
    """Return the expert with a share of its actions replaced by a request for the page."""

    def speak(request: Request) -> str:
        return '{"tool":"refresh"}' if uniform("clumsy", *request.key) < rate else expert(request)

    return speak


def played(episode: Episode) -> Any:
    """Return an episode without its method and decisions."""
    record = to_dict(episode)
    record.pop("method")
    for step in record["steps"]:
        step.pop("decision")
    return record
