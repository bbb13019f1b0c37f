"""Every task of MiniWoB++ reset, stepped and closed in a real Chromium, beside plain BrowserGym in the same run.

    python benchmarks/miniwob_sweep.py                # all 125, every sixth beside plain BrowserGym with its defaults
    python benchmarks/miniwob_sweep.py --every 0      # without the peer

Printed: failures with their causes, the median seconds of a reset and a step of either, and their ratios. The two take
turns, task by task, so that a busy machine is equally busy for both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from r2v.envs.base import Task
from r2v.envs.browser.benchmark import miniwob_url
from r2v.envs.browser.chromium import find_chromium
from r2v.envs.browser.miniwob import MiniWoB
from r2v.envs.worker.environment import WorkerEnvironment, WorldLimits
from r2v.envs.worker.pool import WorkerPool
from r2v.envs.worker.process import WorldProcess

STEPS = 3
LEAST = 110
PLAYWRIGHT_BUILD = "chromium-1117/chrome-linux"
"""Folder in which playwright 1.44 looks for the browser that it would have downloaded."""


class Arm:
    """One side of the comparison: its seconds and its failures."""

    def __init__(self, name: str, pool: WorkerPool, noop: str) -> None:
        self.name, self.pool, self.noop = name, pool, noop
        self.resets: list[float] = []
        self.steps: list[float] = []
        self.failures: dict[str, str] = {}

    def play(self, task: Task) -> None:
        """Reset, make a few steps, and close."""
        world = WorkerEnvironment(self.pool, limits=WorldLimits(reset_seconds=120, step_seconds=60), tools=())
        since = time.perf_counter()
        _, info = world.reset(seed=1, task=task)
        self.resets.append(time.perf_counter() - since)
        for _ in range(STEPS):
            if info.env_fault is None:
                since = time.perf_counter()
                observation, _, ended, truncated, info = world.step(self.noop)
                self.steps.append(time.perf_counter() - since)
                if ended or truncated:
                    break
        world.close()
        if info.env_fault is not None:
            self.failures[str(task.template_id)] = info.env_fault

    def line(self) -> str:
        """Return the medians, and the number of measurements."""
        return (
            f"{self.name:<34} reset {statistics.median(self.resets):6.2f} s ({len(self.resets)})   "
            f"step {statistics.median(self.steps):6.2f} s ({len(self.steps)})"
        )


def plain(folder: Path) -> WorkerPool:
    """Return workers of plain BrowserGym, with Debian's browser where playwright looks for its own."""
    build = folder / PLAYWRIGHT_BUILD
    build.mkdir(parents=True)
    (build / "chrome").symlink_to(find_chromium())
    variables = {**miniwob_url(), "PLAYWRIGHT_BROWSERS_PATH": str(folder)}
    world = WorldProcess(
        world="plain_browsergym:PlainWorld", environment=variables, search=(Path(__file__).resolve().parent,)
    )
    return WorkerPool(world)


def main() -> int:
    """Run the sweep; return 1 if fewer than LEAST tasks work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--every", type=int, default=6, help="play every n-th task with the peer too; 0: none (default: 6)"
    )
    parser.add_argument("--names", default="all", help="tasks, separated by spaces (default: all)")
    options = parser.parse_args()
    benchmark = MiniWoB(names=options.names, instances=1)
    ours = Arm("r2v", benchmark.pool, '{"tool":"noop","wait_ms":0}')
    with tempfile.TemporaryDirectory() as folder:
        peer = Arm("browsergym 0.14.3, its defaults", plain(Path(folder)), "noop(0)")
        tasks = benchmark.tasks()
        for number, task in enumerate(tasks):
            ours.play(task)
            if options.every and number % options.every == 0:
                peer.play(task)
            print(f"{number + 1}/{len(tasks)} {task.template_id}", file=sys.stderr, flush=True)
        peer.pool.close()
    benchmark.pool.close()
    works = len(tasks) - len(ours.failures)
    print(f"{works} of {len(tasks)} tasks reset, step and close")
    for cause, count in Counter(ours.failures.values()).most_common():
        print(f"  {count}: {cause} ({', '.join(name for name, why in ours.failures.items() if why == cause)})")
    print(ours.line())
    if peer.resets:
        print(peer.line())
        reset, step = (
            statistics.median(getattr(peer, x)) / statistics.median(getattr(ours, x)) for x in ("resets", "steps")
        )
        print(f"times as fast: reset {reset:.2f}, step {step:.2f}")
    return int(options.names == "all" and works < LEAST)


if __name__ == "__main__":
    raise SystemExit(main())
