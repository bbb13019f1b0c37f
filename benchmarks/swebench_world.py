"""Wall time of a SWE-bench world on the bundled instances: a reset, a command and a grading.

r2v swebench install && python benchmarks/swebench_world.py
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from r2v.envs.swe import SweBench
from r2v.envs.swe.expert import next_action
from r2v.wire.message import Message

TASKS = 7


def main() -> None:
    """Print the medians over an instance of each package."""
    benchmark = SweBench()
    first = {task.template_id: task for task in benchmark.tasks()}
    spent: dict[str, list[float]] = {"reset": [], "command": [], "submit, graded": []}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        spent[name].append(time.perf_counter() - began)

    for task in list(first.values())[:TASKS]:
        world, messages, over = benchmark.make(), [Message(role="user", content=task.goal)], False
        with timed("reset"):
            world.reset(seed=1, task=task)
        while not over:
            action = next_action(benchmark.instances[task.task_id], messages)
            name = "submit, graded" if "submit" in action else "command"
            with timed(name):
                page, _, over, _, _ = world.step(action)
            messages += [Message(role="assistant", content=action), Message(role="tool", content=page)]
    for name, seconds in spent.items():
        print(f"{name}: median {statistics.median(seconds):.2f} s of {len(seconds)}")
    print(f"{os.cpu_count()} processors, load average {os.getloadavg()[1]:.1f} over 5 minutes")


if __name__ == "__main__":
    main()
