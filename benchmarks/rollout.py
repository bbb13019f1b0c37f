"""Rollouts through the wave engine, beside hand-written loops over transformers' `generate` in the same run.

    python benchmarks/rollout.py [--policy outputs/mrp/policy/preference/final] [--tasks 40]

1. Episodes per CPU-second: all conversations through `Waves` and one batched generate per flush, against one episode
   after the other with transformers' own `generate`. Both must play equal episodes.
2. K = 5 candidates of a state: five samples from one shared prefix, against five prompts given to transformers'
   `generate`, a state at a time and all states in one batch.

All in float64 on one thread. Each figure is the best of `--rounds` interleaved rounds; each of ours has a new backend
without cached states. Compare the ratios, not the absolute figures.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from r2v.config import Config, TaskSelection
from r2v.envs.base import load_benchmark
from r2v.llm.local.backend import LocalBackend
from r2v.llm.types import Reply, Request, Sample, Usage
from r2v.llm.waves import Waves
from r2v.policy.load import load_policy
from r2v.policy.prompt_encoder import Encoder
from r2v.rollout.actors import GreedyActor, PricedModel
from r2v.rollout.session import RolloutWorld, episode_specs, play_many

K = 5


class Peer:
    """transformers' `generate` on prompts padded on the left."""

    max_batch = 1

    def __init__(self, model: Any, tokenizer: Any, encode: Encoder) -> None:
        self.model, self.tokenizer, self.encode = model, tokenizer, encode

    def answer(self, questions: Sequence[Request]) -> list[Reply]:
        """Return one greedy reply per question, each by its own `generate`."""
        return [
            Reply(samples=(Sample(text=self.generate([question])[0]),), usage=Usage(), model="peer")
            for question in questions
        ]

    def generate(self, questions: Sequence[Request], **sampling: Any) -> list[str]:
        """Return one reply per question, by one `generate` for all."""
        prompts = [list(self.encode(question.messages)) for question in questions]
        width, pad = max(map(len, prompts)), self.tokenizer.eos_token_id
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=questions[0].max_tokens,
                pad_token_id=pad,
                **(sampling or {"do_sample": False}),
            )
        return list(self.tokenizer.batch_decode(out[:, width:], skip_special_tokens=True))


def best(rounds: int, *works: Callable[[], object]) -> list[float]:
    """Return the least CPU-seconds of each, over interleaved rounds."""
    seconds = [float("inf")] * len(works)
    for _ in range(rounds):
        for index, work in enumerate(works):
            begun = time.process_time()
            work()
            seconds[index] = min(seconds[index], time.process_time() - begun)
    return seconds


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", type=Path, default=Path("outputs/mrp/policy/preference/final"))
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    if not arguments.policy.exists():
        parser.error(f"{arguments.policy}: no such policy; run `make mrp` first or name one with --policy")
    torch.set_num_threads(1)
    config = Config()
    loaded = load_policy(config.policy, arguments.policy.resolve())
    encode = Encoder.of(loaded.tokenizer, config.policy, config.inference.max_new_tokens)
    benchmark = load_benchmark("desk")
    world = RolloutWorld(benchmark, config.perturbations, config.inference)
    specs = episode_specs(
        benchmark, "calibration", [1], TaskSelection.training(config), method="slm_only", limit=arguments.tasks
    )
    peer = Peer(loaded.model, loaded.tokenizer, encode)

    def local() -> LocalBackend:
        return LocalBackend(
            loaded.model, loaded.tokenizer, encode, name="slm", price=config.cost.slm_price, max_batch=200
        )

    def play(backend: Any, width: int) -> list[Any]:
        waves = Waves(workers=1, max_conversations=width)
        side = PricedModel(waves.model(backend), config.cost.slm_price, "slm", config.inference.max_new_tokens)
        return play_many(waves, world, specs, GreedyActor(side, "slm"))

    together, alone = play(local(), 64), play(peer, 1)
    differing = sum(
        [s.action for s in a.steps] != [s.action for s in b.steps] for a, b in zip(together, alone, strict=True)
    )
    ours, theirs = best(arguments.rounds, lambda: play(local(), 64), lambda: play(peer, 1))
    print(
        f"episodes per CPU-second: waves {len(specs) / ours:.1f}, one at a time {len(specs) / theirs:.1f}, "
        f"ratio {theirs / ours:.2f} (aim 5); {differing} of {len(specs)} episodes differ"
    )

    requests = [
        Request(
            messages=world_messages(world, spec),
            key=("bench", index),
            temperature=0.7,
            top_p=0.95,
            num_samples=K,
            max_tokens=config.inference.max_new_tokens,
        )
        for index, spec in enumerate(specs)
    ]
    sampling = {"do_sample": True, "temperature": 0.7, "top_p": 0.95, "top_k": 0}
    shared, separate, batched = best(
        arguments.rounds,
        lambda: local().answer(requests),
        lambda: [peer.generate([request] * K, **sampling) for request in requests],
        lambda: peer.generate([request for request in requests for _ in range(K)], **sampling),
    )
    print(
        f"K={K} candidates, states per CPU-second: shared prefix {len(requests) / shared:.1f}; five prompts, a state "
        f"at a time {len(requests) / separate:.1f}, ratio {separate / shared:.2f}; all states in one batch "
        f"{len(requests) / batched:.1f}, ratio {batched / shared:.2f} (aim 2)"
    )


def world_messages(world: RolloutWorld, spec: Any) -> Any:
    """Return the conversation at the first step of a play."""
    with closing(world.start(spec)) as session:
        session.open()
        return session.view().messages


if __name__ == "__main__":
    main()
