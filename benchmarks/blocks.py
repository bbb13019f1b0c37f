"""Memory of an evaluation that is played block by block.

    python benchmarks/blocks.py                       # 1,000 episodes of 25 pages of 34 kB
    python benchmarks/blocks.py --episodes 200 --pages 10

Scripted models play a world of long pages by five methods, in blocks, into an episode cache in a temporary folder, with
the memo, the features and the token counts that an evaluation has. Printed: resident memory after a tenth of the
episodes and at the end, its growth between the two (at most 100 MB for the 1,000), and the bytes of all pages seen.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from r2v.config import InferenceConfig, PerturbationsConfig, Price
from r2v.data.episode import Episode
from r2v.envs.chain import ChainBenchmark, ChainEnvironment, chain_actor
from r2v.llm.answer_cache import AnswerCache
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.waves import Waves
from r2v.randomness import digest
from r2v.rollout.actors import Actor, GreedyActor, PricedModel, Routed
from r2v.rollout.episode_cache import EpisodeCache
from r2v.rollout.gates import FeatureExtractor, ScoreGate
from r2v.rollout.session import EpisodeSpec, RolloutWorld
from r2v.rollout.work_queue import BlockPlayer, Cell

PAGE = 34_000
THRESHOLDS = (1.0, 0.9, 0.7, 0.5, 0.0)
"""A method each."""
MOST_MB = 100


class LongPages(ChainEnvironment):
    """Doors behind a page of text that no other door has."""

    def _page(self) -> str:
        door = json.loads(super()._page())
        line = digest("tree", *map(str, door.values())).hex()
        return json.dumps({**door, "tree": (line + "\n") * (PAGE // (len(line) + 2))}, separators=(",", ":"))


class LongChain(ChainBenchmark):
    """The chain of long pages."""

    def make(self) -> LongPages:
        return LongPages()


def resident_mb() -> float:
    """Return this process's resident memory in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cells(waves: Waves, benchmark: LongChain, episodes: int, pages: int) -> list[Cell]:
    """Return one cell per method, each over all tasks."""
    inference = InferenceConfig(max_steps=pages)
    world = RolloutWorld(benchmark, PerturbationsConfig(), inference)

    def side(name: str, accuracy: float) -> PricedModel:
        price = Price(input=1.0, output=2.0, seconds_per_call=0.1, seconds_per_token=0.01)
        backend = ScriptedBackend(chain_actor(accuracy), name=name, price=price)
        return PricedModel(waves.model(backend, AnswerCache()), price, name, 64)

    slm, llm = side("slm", 0.9), side("llm", 0.99)
    extractor = FeatureExtractor(inference)
    gate = ScoreGate(lambda features, seed, task, step: digest(task, step)[0] / 256, extractor)
    specs = [
        EpisodeSpec(task=task, seed=1, split="evaluation")
        for task in benchmark.tasks()[: -(-episodes // len(THRESHOLDS))]
    ]

    def cell(tau: float) -> Cell:
        actor: Actor = GreedyActor(slm, "slm") if tau == 1.0 else Routed(slm, llm, gate, tau, 1000)

        async def play(spec: EpisodeSpec) -> list[Episode]:
            return [await world.start(spec).finish(actor, waves)]

        return Cell(what=f"{tau}", specs=specs, play=play, kinds=(Episode,), identity={"tau": tau})

    return [cell(tau) for tau in THRESHOLDS]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--pages", type=int, default=25)
    arguments = parser.parse_args(argv)
    benchmark = LongChain(num_tasks=arguments.episodes, length=arguments.pages)
    waves = Waves(workers=2, max_conversations=16)
    marks: list[tuple[int, float]] = []

    class Watched(EpisodeCache):
        played = 0

        def add(self, block: str, key: str, records: Any) -> None:
            super().add(block, key, records)
            self.played += 1
            if self.played % max(1, arguments.episodes // 10) == 0:
                marks.append((self.played, resident_mb()))

    with tempfile.TemporaryDirectory() as folder:
        player = BlockPlayer(waves, Watched(Path(folder), "evaluate-0"), 16)
        player.play(cells(waves, benchmark, arguments.episodes, arguments.pages))
    for count, megabytes in marks:
        print(f"{count:6d} episodes  {megabytes:8.1f} MB")
    grown = max(megabytes for _, megabytes in marks) - marks[0][1]
    shown = arguments.episodes / len(THRESHOLDS) * arguments.pages * PAGE / 1e6
    print(f"pages of one pass over all tasks: {shown:.0f} MB")
    print(f"grown after the first tenth: {grown:.1f} MB (allowed {MOST_MB})")
    return int(grown > MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
