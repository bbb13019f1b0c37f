"""Memory and CPU of browsers on a node: worlds open side by side, their resets and their steps.

python -m benchmarks.browsers                    # MiniWoB++: 1, 2, 4 and 8 worlds
python -m benchmarks.browsers --webarena         # WebArena's on stub sites, after `r2v webarena install`

Memory is the proportional set size (PSS) of all descendants of this process: shared pages are counted once.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from pathlib import Path
from typing import Any

from r2v.envs.base import Closable, load_benchmark
from tests.envs.webarena.stubs import Stub

_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print a row for each number of worlds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--webarena", action="store_true", help="worlds of WebArena, not of MiniWoB++")
    parser.add_argument(
        "--worlds", type=int, nargs="+", default=[1, 2, 4, 8], help="numbers of worlds (default: 1 2 4 8)"
    )
    arguments = parser.parse_args()
    stub = Stub()
    os.environ |= stub.variables()
    options: dict[str, Any] = {"names": "click-test login-user"}
    if arguments.webarena:
        options = {"tasks": "7 377 389 600", "slow_mo": 0, "traces": ""}
    print("worlds  MiB: browsers  Python   all  each  CPU-s a reset  a step")
    for count in arguments.worlds:
        _measure("webarena" if arguments.webarena else "miniwob", options, count)
        gc.collect()  # a benchmark's workers end with it
    stub.close()


def _measure(name: str, options: dict[str, Any], count: int) -> None:
    """Open worlds, side by side, and print their row."""
    benchmark = load_benchmark(name, options)
    tasks = benchmark.tasks()
    worlds = [benchmark.make() for _ in range(count)]
    _resets(worlds, tasks)  # interpreters and browsers have started
    began = _spent()
    _resets(worlds, tasks)
    reset = (_spent() - began) / count
    began = _spent()
    for world in worlds:
        world.step('{"tool":"scroll","delta_x":0,"delta_y":10}')
    step = (_spent() - began) / count
    time.sleep(1)
    browsers, others = _memory()
    whole = browsers + others
    print(f"{count:6}  {browsers:13.0f}  {others:6.0f}  {whole:4.0f}  {whole / count:4.0f}  {reset:13.2f}  {step:6.2f}")
    for resource in (*worlds, benchmark):
        if isinstance(resource, Closable):
            resource.close()


def _resets(worlds: list[Any], tasks: Any) -> None:
    for number, world in enumerate(worlds):
        info = world.reset(seed=number, task=tasks[number % len(tasks)])[1]
        assert info.env_fault is None, info.env_fault


def _below() -> list[Path]:
    """Return the folders of /proc of all descendants of this process."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    descendants, new = set(), {os.getpid()}
    while new := {child for child, parent in parents.items() if parent in new}:
        descendants |= new
    return [Path("/proc") / str(number) for number in descendants]


def _spent() -> float:
    """Return the CPU-seconds of all live descendants of this process."""
    seconds = 0.0
    for path in _below():
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        seconds += sum(map(int, fields[11:15])) / _TICKS
    return seconds


def _memory() -> tuple[float, float]:
    """Return the MiB of the browsers below this process, and of all its other descendants."""
    browsers = others = 0.0
    for path in _below():
        try:
            rows = (path / "smaps_rollup").read_text().splitlines()
            program = (path / "comm").read_text()
        except OSError:
            continue
        size = next((int(row.split()[1]) / 1024 for row in rows if row.startswith("Pss:")), 0.0)
        browsers += size * ("chrom" in program)
        others += size * ("chrom" not in program)
    return browsers, others


if __name__ == "__main__":
    main()
