"""Wall and CPU seconds of a WebArena world on stub sites: a reset with its login, a step with its grading.

r2v webarena install && python -m benchmarks.webarena_world

Both are measured with the benchmark's own second of `slow_mo` and without. The sites are loopback pages
(tests/envs/webarena/stubs.py); the answer times of real ones come on top.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from r2v.envs.webarena.addresses import PUBLIC_NAMES
from r2v.envs.webarena.benchmark import WebArena
from tests.envs.webarena.playing import call
from tests.envs.webarena.stubs import Stub

TASKS = (7, 377, 389, 118, 600)
"""Of the map, GitLab, the shop and the forum: with and without a login."""


def main() -> None:
    """Print the medians of either pace, task by task in turns."""
    stub = Stub()
    os.environ |= stub.variables()
    paces: dict[str, int | None] = {"slow_mo 1000, the benchmark's own": None, "slow_mo 0": 0}
    worlds = {name: WebArena(tasks=TASKS, slow_mo=slow, traces="") for name, slow in paces.items()}
    spent: dict[tuple[str, str], list[float]] = {(name, part): [] for name in paces for part in ("reset", "step")}

    @contextmanager
    def timed(name: str, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        spent[name, part].append(time.perf_counter() - began)

    for number in range(len(TASKS)):
        for name, benchmark in worlds.items():
            world, task = benchmark.make(), benchmark.tasks()[number]
            with timed(name, "reset"):
                world.reset(seed=1, task=task)
            page = ("goto", f"url={PUBLIC_NAMES[task.payload['sites'][0]]}/a")
            filled = ("fill", "bid=[textbox Search]", "value=x")
            shown = ""
            for words in (page, filled, page):
                action = call(shown, words)
                with timed(name, "step"):
                    shown = world.step(action)[0]
            world.close()
    for benchmark in worlds.values():
        benchmark.close()
    stub.close()
    for (name, part), seconds in spent.items():
        print(f"{name}: {part} median {statistics.median(seconds):.2f} s of {len(seconds)}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    calls = sum(map(len, spent.values()))
    print(f"{(used.ru_utime + used.ru_stime) / calls:.2f} CPU-seconds per call, including the workers' starts")
    print(f"{os.cpu_count()} processors, load average {os.getloadavg()[1]:.1f} over 5 minutes")


if __name__ == "__main__":
    main()
