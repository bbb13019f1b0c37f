"""Growth of CPU time and peak memory with the data: every pass over many episodes or runs.

    python benchmarks/scale.py                               # 100,000 episodes and 5,000 runs, beside a quarter of each
    python benchmarks/scale.py --episodes 8000 --runs 400    # minutes
    python benchmarks/scale.py --only registry merge

Each pass runs in a process of its own. Memory is its peak above the imports' memory; `per item` is the CPU time of an
item, and `growth` that time at the full size over that at a quarter of it: 1 is linear, 4 quadratic. Episodes to be
collected and merged are synthetic, of the bundled desk's usual size; those that are evaluated and verified are played.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

LIMIT_MIB = 200.0
GROWTH = 1.5
"""Limits of a pass; above either the exit code is 1."""
IMPORTS = (
    "matplotlib.figure",
    "r2v.cli.main",
    "r2v.data.registry",
    "r2v.evaluation.audit.verify",
    "r2v.evaluation.tables.build",
    "r2v.report.build",
    "scipy.stats",
    "transformers",
)
"""Modules that the passes import lazily, imported before a pass is measured. torch is absent: no pass needs it, and one
that imports it exceeds the limit."""
SEEDS, CONDITIONS = 10, ("noisy", "clean")
_STEPS, _PAGE = 6, "ticket 4711 is open; the customer writes that the printer on floor 3 does not answer. " * 7


def lines(count: int, run: str = "r") -> Iterator[str]:
    """Yield episodes of 4.7 kB, each of its own task, in no order of their ids."""
    from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step, to_line

    steps = tuple(
        Step(step_idx=i, observation=Observation(raw_text=_PAGE), action=Action(raw_text=f"act {i}"), reward=0.0)
        for i in range(_STEPS)
    )
    about = EpisodeMetadata(task_id="@TASK@", goal="do @TASK@", benchmark="desk", seed=1, run_id=run, split="train")
    line = to_line(Episode(episode_id="@TASK@/s1", metadata=about, steps=steps, success=True, total_cost=0.01))
    for number in range(count):
        yield line.replace("@TASK@", f"task-{number * 7919 % count:07d}")


def begun(data: Path, fingerprint: str = "f") -> Any:
    """Begin a run of the desk."""
    from r2v.data.registry import DataRegistry

    return DataRegistry(data).begin_run(
        benchmark="desk", provider="scripted", model_name="m", fingerprint=fingerprint, config={}
    )


def collected(data: Path, text: Iterator[str]) -> str:
    """Make a finished run of these lines."""
    with begun(data) as run:
        with run.store.path.open("a") as file:
            file.writelines(f"{line}\n" for line in text)
        run.finish(expected=sum(1 for _ in run.store.path.open("rb")))
        return str(run.run_id)


def prepare_collect(folder: Path, count: int) -> None:
    """Make an interrupted run with all of its episodes."""
    with begun(folder / "data") as run, run.store.path.open("w") as file:
        file.writelines(f"{line}\n" for line in lines(count))


def collect(folder: Path, count: int) -> None:
    """Close a collection: order, count and hash its finished episodes."""
    from r2v.data.registry import DataRegistry
    from r2v.data.store import sort_episodes

    registry = DataRegistry(folder / "data")
    [run] = registry.query()
    with registry.begin_run(
        benchmark="desk", provider="scripted", model_name="m", fingerprint="f", config={}, run_id=run.run_id
    ) as handle:
        assert len(handle.store.done_keys()) == count
        sort_episodes(handle.store.path)
        assert handle.finish(expected=count).status == "done"


def prepare_merge(folder: Path, count: int) -> None:
    """Make ten runs, a tenth of whose episodes are duplicates of the first's."""
    for number in range(10):
        collected(folder / "data", lines(count // 10, f"run{number}"))


def merge(folder: Path, count: int) -> None:
    """Merge ten runs into one file."""
    from r2v.data.registry import DataRegistry

    registry = DataRegistry(folder / "data")
    registry.merge_runs([run.run_id for run in registry.query()], folder / "merged.jsonl", deduplicate=False)


def prepare_evaluation(folder: Path, count: int) -> None:
    """Make a folder of results: the closed-form chain, played by its expert under every condition and seed."""
    tasks = count // (SEEDS * len(CONDITIONS))
    config = {
        "prefix": "scale",
        "env": {"benchmark": "chain", "options": {"num_tasks": 6 * tasks, "length": 2}},
        "evaluation": {
            "num_tasks": tasks,
            "seeds": list(range(1, SEEDS + 1)),
            "conditions": list(CONDITIONS),
            "methods": ["llm_only"],
            "budgets": [],
        },
    }
    given = (folder / "scale").with_suffix(".yaml")
    given.write_text(json.dumps(config))
    command = [sys.executable, "-m", "r2v", "evaluate", "--config", given.name]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tables(folder: Path, count: int) -> None:
    """Build every table from the stored episodes."""
    from r2v.evaluation.tables.build import write_results_folder

    assert write_results_folder(folder / "results" / "scale").n_episodes == count


def verify(folder: Path, count: int) -> None:
    """Run `r2v verify-results`."""
    from r2v.cli.main import main

    os.chdir(folder)
    assert main(["verify-results", "results/scale"]) == 0


def report(folder: Path, count: int) -> None:
    """Run `r2v report`: the page of an evaluation, with every episode."""
    from r2v.report.build import build_report

    assert build_report(folder / "results" / "scale", force=True).is_file()


def registry(folder: Path, count: int) -> None:
    """Begin and finish `count` runs."""
    for _ in range(count):
        with begun(folder / "data") as run:
            run.finish(expected=0)


def listing(folder: Path, count: int) -> None:
    """List all runs, the latest, and their table, and rebuild the index."""
    from r2v.data.registry import DataRegistry

    runs = DataRegistry(folder / "data")
    assert len(runs.query()) == count
    runs.latest_run("desk")
    assert len(runs.summary().splitlines()) == count + 1
    runs.rebuild()


PASSES: dict[str, tuple[Callable[[Path, int], None], Callable[[Path, int], None] | None, str]] = {
    "collect": (collect, prepare_collect, "episodes"),
    "merge": (merge, prepare_merge, "episodes"),
    "tables": (tables, prepare_evaluation, "episodes"),
    "verify": (verify, prepare_evaluation, "episodes"),
    "report": (report, prepare_evaluation, "episodes"),
    "registry": (registry, None, "runs"),
    "listing": (listing, registry, "runs"),
}
"""Name -> the pass, the maker of its input, and the unit of its size."""


def measured(name: str, folder: Path, count: int) -> dict[str, float]:
    """Run one pass in this process; return its CPU seconds and its peak MiB above the imports."""
    for module in IMPORTS:
        importlib.import_module(module)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, cpu = _status("VmRSS"), time.process_time()
    PASSES[name][0](folder, count)
    return {"cpu_seconds": time.process_time() - cpu, "mib": (_status("VmHWM") - before) / 1024}


def _status(name: str) -> int:
    return next(
        int(row.split()[1]) for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name)
    )


def in_a_process(name: str, folder: Path, count: int, what: str) -> dict[str, float]:
    """Run `measured`, or a preparation, in a process of its own."""
    completed = subprocess.run(
        [sys.executable, __file__, "--child", what, name, str(folder), str(count)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: dict[str, float] = json.loads(completed.stdout.splitlines()[-1])
    return figures


def one(name: str, count: int, scratch: Path, inputs: dict[tuple[Any, int], Path]) -> dict[str, float]:
    """Measure a pass over `count` items; inputs of another pass are used again."""
    prepare = PASSES[name][1]
    folder = inputs.setdefault((prepare, count), scratch / f"{name}-{count}")
    if not folder.exists():
        folder.mkdir(parents=True)
        if prepare is not None:
            in_a_process(name, folder, count, "prepare")
    return in_a_process(name, folder, count, "measure")


def child(arguments: list[str]) -> None:
    """Entry point of the processes that `in_a_process` starts."""
    what, name, folder, count = arguments
    work, prepare, _ = PASSES[name]
    figures: dict[str, float] = {}
    with Path(os.devnull).open("w") as nowhere:
        out, sys.stdout = sys.stdout, nowhere
        if what == "measure":
            figures = measured(name, Path(folder), int(count))
        elif prepare is not None:
            prepare(Path(folder), int(count))
        sys.stdout = out
    print(json.dumps(figures))


def main() -> int:
    """Print a table; return 1 if a pass is not linear or exceeds the memory limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=100_000, help="of the full size (default: 100,000)")
    parser.add_argument("--runs", type=int, default=10_000, help="in the registry (default: 10,000)")
    parser.add_argument("--only", nargs="+", choices=PASSES, default=list(PASSES), help="these passes alone")
    parser.add_argument("--scratch", type=Path, help="where to write; several GB (default: a temporary folder)")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.child:
        child(values.child)
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="r2v-scale-", dir=values.scratch))
    inputs: dict[tuple[Any, int], Path] = {}
    good = True
    print(f"{'pass':10} {'items':>8} {'CPU s':>9} {'per item':>10} {'MiB over imports':>17} {'growth':>7}")
    try:
        for name in values.only:
            whole = values.episodes if PASSES[name][2] == "episodes" else values.runs
            small, full = (one(name, count, scratch, inputs) for count in (whole // 4, whole))
            growth = (full["cpu_seconds"] / whole) / (small["cpu_seconds"] / (whole // 4))
            for count, spent, shown in ((whole // 4, small, ""), (whole, full, f"{growth:.2f}")):
                each = 1000 * spent["cpu_seconds"] / count
                figures = f"{spent['cpu_seconds']:9.1f} {each:7.3f} ms {spent['mib']:17.0f} {shown:>7}"
                print(f"{name:10} {count:8} {figures}", flush=True)
            good &= growth < GROWTH and full["mib"] < LIMIT_MIB
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{'linear' if good else 'NOT GOOD'}; {usage.ru_utime + usage.ru_stime:.0f} CPU-s in all")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
