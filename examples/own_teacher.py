"""A teacher of one's own: any class whose `answer` takes a list of requests and gives a reply to each.

    python -m examples.own_teacher        # it plays 20 carts of examples/own_benchmark.py

This is how to use a model from Python. A model behind an OpenAI-compatible URL needs no code: see
docs/quickstart-teacher.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from examples.own_benchmark import Parcels
from r2v.config import InferenceConfig, PerturbationsConfig, Price
from r2v.envs.base import Task
from r2v.llm.types import Reply, Request, Sample, Usage
from r2v.llm.waves import Waves
from r2v.rollout.actors import GreedyActor, PricedModel
from r2v.rollout.session import EpisodeSpec, RolloutWorld, play_many

PRICE = Price(input=3.0, output=15.0, seconds_per_call=0.6, seconds_per_token=0.02)
"""USD per million tokens, and the speed that tables assume."""


class Teacher:
    """Answers with the benchmark's expert; put a call of your own model in its place."""

    max_batch = 32  # the most requests that `answer` is given at a time

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        return [self.reply(request) for request in requests]

    def reply(self, request: Request) -> Reply:
        text = Parcels().expert(request)
        tokens_in, tokens_out = sum(len(message.text) // 4 for message in request.messages), len(text) // 4
        cost = (tokens_in * PRICE.input + tokens_out * PRICE.output) / 1e6
        usage = Usage(tokens_in=tokens_in, tokens_out=tokens_out, cost_usd=cost)
        return Reply(samples=(Sample(text=text),), usage=usage, model="my-teacher")


def episodes_to_play(count: int) -> list[EpisodeSpec]:
    """Return one episode of each of the first `count` tasks."""
    tasks: Sequence[Task] = Parcels().tasks()[:count]
    return [EpisodeSpec(task=task, seed=1, split="evaluation") for task in tasks]


def world() -> RolloutWorld:
    """The benchmark without perturbations, 12 steps at most."""
    return RolloutWorld(Parcels(), PerturbationsConfig(), InferenceConfig(max_steps=12))


if __name__ == "__main__":
    waves = Waves(workers=1)
    actor = GreedyActor(PricedModel(waves.model(Teacher()), PRICE, "llm", 64), "teacher")
    played = play_many(waves, world(), episodes_to_play(20), actor)
    print(f"{sum(episode.success for episode in played)} of {len(played)} carts sorted")
    print(f"${sum(episode.total_cost for episode in played):.4f} in all")
