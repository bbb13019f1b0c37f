"""Throughput of worlds that share state: four site sets beside one, in the same run.

    python benchmarks/sites.py

A third of the tasks change their site and run alone on it; the others only read, two at a time. Each answer of a site
takes 100 ms, in which the world waits. Four site sets run four times as many episodes at a time; the losses are the
waits for an empty site, and the start and end of the run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from r2v.config import InferenceConfig, PerturbationsConfig, Price, RolloutConfig
from r2v.envs.base import Capabilities, Info, Task
from r2v.llm.scripted import ScriptedBackend
from r2v.rollout.actors import GreedyActor, PricedModel
from r2v.rollout.model_factory import engine
from r2v.rollout.session import EpisodeSpec, RolloutWorld, play_many
from r2v.rollout.sites import SitePool
from r2v.wire.message import ToolSpec

ASKED = 3.5
ANSWER_SECONDS, STEPS = 0.1, 5
FREE = Price(input=0.0, output=0.0, seconds_per_call=0.0, seconds_per_token=0.0)


class Loopback:
    """A site that takes its time."""

    name = "loopback"
    version = "1"
    capabilities = Capabilities(parallel=False, per_site=2, waits=True)

    def __init__(self, num_tasks: int) -> None:
        self.num_tasks = num_tasks

    def tasks(self) -> Sequence[Task]:
        """Tasks, of which every third one changes the site."""
        return [Task(task_id=f"t-{i:04}", goal=f"visit {i}", mutates=i % 3 == 0) for i in range(self.num_tasks)]

    def make(self) -> LoopbackWorld:
        """Make a world on the only site."""
        return LoopbackWorld()

    def make_at(self, site: str) -> LoopbackWorld:
        """Make a world on this site."""
        return LoopbackWorld()


class LoopbackWorld:
    """Ends after a few answers."""

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Return the first page."""
        time.sleep(ANSWER_SECONDS)
        self._steps = 0
        return "page 0", Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Return the next page."""
        time.sleep(ANSWER_SECONDS)
        self._steps += 1
        over = self._steps == STEPS
        return f"page {self._steps}", 0.0, over, False, Info(success=True) if over else Info()

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return no tools."""
        return ()


def episodes_per_second(num_sites: int, num_tasks: int) -> float:
    """Return the episodes per second on this number of site sets."""
    benchmark = Loopback(num_tasks)
    rollout = RolloutConfig(sites=[f"site-{i}" for i in range(num_sites)])
    waves = engine(rollout, benchmark)
    model = PricedModel(waves.model(ScriptedBackend(lambda request: "on", name="slm", price=FREE)), FREE, "slm", 8)
    with tempfile.TemporaryDirectory() as root:
        pool = SitePool.of(rollout, benchmark, Path(root))
        world = RolloutWorld(benchmark, PerturbationsConfig(), InferenceConfig(max_steps=STEPS + 1), pool)
        specs = [EpisodeSpec(task=task, seed=1) for task in benchmark.tasks()]
        begun = time.perf_counter()
        play_many(waves, world, specs, GreedyActor(model, "slm"))
        return len(specs) / (time.perf_counter() - begun)


def main() -> None:
    """Print both and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=120)
    tasks = parser.parse_args().tasks
    one, four = episodes_per_second(1, tasks), episodes_per_second(4, tasks)
    print(f"episodes/s: one site set {one:.2f}, four {four:.2f}, ratio {four / one:.2f} (aim: at least {ASKED})")


if __name__ == "__main__":
    main()
