"""Size of a report, CPU time to make it, and seconds until it opens.

    python benchmarks/report.py results/mrp                     # its episodes, repeated to 10,000
    python benchmarks/report.py results/mrp --episodes 20000

The results are copied with their episodes under further task names until there are `--episodes`, a report is made, and
a Chromium opens it and one of its episodes. Printed: CPU seconds to make it, its size (at most 30 MB), seconds until
the list can be read (at most 2) and until an episode can, and the same for an empty page in the same browser.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from r2v.data.episode import to_line
from r2v.data.store import TrajectoryStore
from r2v.envs.browser.chromium import chromium_flags, find_chromium
from r2v.evaluation.setup import MAIN, planned_files, read_setup, write_setup
from r2v.report.build import build_report
from r2v.storage.files import write_lines

MOST_MB, MOST_SECONDS = 30, 2


def main() -> int:
    parser = argparse.ArgumentParser(description="Size of a report, CPU time to make it, and seconds until it opens.")
    parser.add_argument("results", type=Path, metavar="DIR", help="a results folder")
    parser.add_argument("--episodes", type=int, default=10_000, metavar="N", help="episodes to show (default: 10000)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results" / "many"
        count = repeated(arguments.results, results, arguments.episodes)
        begun = time.process_time()
        page = build_report(results)
        cpu = time.process_time() - begun
        size = sum(path.stat().st_size for path in page.parent.rglob("*") if path.is_file()) / 1e6
        empty = Path(folder) / "empty.html"
        empty.write_text("<!doctype html><title>empty</title><p id=rows>empty")
        nothing, listed, opened = opening(empty, page)
    print(f"{count} episodes: made in {cpu:.1f} CPU-s, {size:.1f} MB (at most {MOST_MB})")
    print(
        f"opens in {listed:.2f} s (at most {MOST_SECONDS}; an empty page {nothing:.2f}), an episode in {opened:.2f} s"
    )
    return int(size > MOST_MB or listed > MOST_SECONDS)


def repeated(source: Path, target: Path, count: int) -> int:
    """Copy a results folder, its tasks under more names until there are `wanted` episodes; return their number."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("gains"))
    setup = read_setup(target)
    once = sum(len(setup.tasks_of(*cell)) for cell in setup.cells() if cell[2] == MAIN) * len(setup.seeds)
    times = -(-count // once)
    for path, _, _, point in planned_files(target, setup):
        episodes = list(TrajectoryStore(path).iter_episodes()) if point == MAIN else []
        path.unlink()
        if episodes:
            lines = (
                to_line(
                    replace(episode, metadata=replace(episode.metadata, task_id=f"{episode.metadata.task_id}-{copy}"))
                )
                for copy in range(times)
                for episode in episodes
            )
            write_lines(path.with_suffix(""), lines)
    tasks = {name: [f"{task}-{copy}" for copy in range(times) for task in ids] for name, ids in setup.tasks.items()}
    write_setup(target, replace(setup, tasks=tasks, frontier={}, limits={}))
    return once * times


def opening(empty: Path, page: Path) -> tuple[float, float, float]:
    """Return the seconds until an empty page, the list of the report, and its first episode can be read."""
    playwright: Any = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(find_chromium()), args=chromium_flags())
        tab = browser.new_page()
        seconds = []
        for path in (empty, page):
            begun = time.perf_counter()
            tab.goto(path.as_uri())
            tab.wait_for_selector("#rows")
            seconds.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        tab.locator("#rows tr").first.click()
        tab.wait_for_selector(".step")
        seconds.append(time.perf_counter() - begun)
        browser.close()
    return seconds[0], seconds[1], seconds[2]


if __name__ == "__main__":
    sys.exit(main())
