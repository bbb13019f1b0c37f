"""CPU cost of helpers: seconds of playing an evaluation by one process, and by one with helpers.

    python benchmarks/helpers.py                        # 3 and 8 helpers, a block a task
    python benchmarks/helpers.py --helpers 2 --tasks 8

A small pipeline (`tests/micro.yaml`) is run up to its router in a temporary folder, then its evaluation alone, and
shared with helpers. All results must be equal to the byte. Printed per episode: CPU seconds of playing (aim: at most
1.25 times one process) without imports, loading and tables, and CPU seconds with them; waves and questions of the small
model; and the slowest process over the mean (aim: at most 1.1). Processes are forked from one that has imported torch.
Wall time is not printed: bundled worlds compute, and there are fewer cores than processes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import sklearn.linear_model  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401

from r2v.cli.main import main as r2v_main
from r2v.llm.local.backend import LocalBackend
from r2v.pipeline.rows import JOIN
from r2v.rollout.work_queue import BlockPlayer
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST
from r2v.storage.integrity import content_files

MICRO = Path(__file__).parents[1] / "tests" / "micro.yaml"
MOST_CPU, MOST_SLOWEST = 1.25, 1.1


@dataclass(frozen=True, kw_only=True)
class Spent:
    """CPU seconds and requests of one process."""

    playing: float
    """CPU seconds in players."""
    whole: float
    """CPU seconds of all of it."""
    waves: int
    """Batches that the small model answered."""
    questions: int


def measured(folder: Path, words: Sequence[str], figures: Path) -> int:
    """Run a command in a fork; the id of its process. Its figures go into a file when it ends."""
    pid = os.fork()
    if pid:
        return pid
    os.chdir(folder)
    log = os.open(figures.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    spent = {"playing": 0.0, "waves": 0.0, "questions": 0.0}
    fill, answer = BlockPlayer.fill, LocalBackend.answer

    def timed(player: BlockPlayer, *arguments: object, **named: object) -> None:
        begun = time.process_time()
        try:
            fill(player, *arguments, **named)  # type: ignore[arg-type]
        finally:
            spent["playing"] += time.process_time() - begun

    def counted(backend: LocalBackend, requests: Sequence[object]) -> object:
        spent["waves"] += 1
        spent["questions"] += len(requests)
        return answer(backend, requests)  # type: ignore[arg-type]

    BlockPlayer.fill, LocalBackend.answer = timed, counted  # type: ignore[method-assign,assignment]
    begun = time.process_time()
    code = r2v_main(list(words))
    figures.write_text(json.dumps({**spent, "whole": time.process_time() - begun}))
    os._exit(code)


def evaluated(folder: Path, words: Sequence[str], helpers: int) -> list[Spent]:
    """Evaluate with this number of helpers; return the cost of each process, the stage's own first."""
    places = [folder / f"figures-{number}.json" for number in range(1 + helpers)]
    pids = [measured(folder, [*words, *(JOIN if number else [])], figures) for number, figures in enumerate(places)]
    for pid, figures in zip(pids, places, strict=True):
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise SystemExit(f"a process failed: {figures.with_suffix('.log').read_text()[-2000:]}")
    return [Spent(**json.loads(figures.read_text())) for figures in places]


def result(folder: Path) -> tuple[dict[str, str], int]:
    """Return the hashes of the evaluation's files, and its number of episodes."""
    artifact = (folder / "results/micro").resolve()
    summary = json.loads((artifact / ARTIFACT_MANIFEST).read_text())["summary"]
    return content_files(artifact), int(summary["n_episodes"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--helpers", type=int, nargs="+", default=[3, 8])
    parser.add_argument("--tasks", type=int, default=40, help="evaluation tasks of each condition (default: 40)")
    parser.add_argument("--block", default="4", help="rollout.episodes_per_block with helpers (default: 4)")
    parser.add_argument("--project", type=Path, help="a folder in which `r2v run --config tests/micro.yaml` was run")
    values = parser.parse_args()
    settings = [f"evaluation.num_tasks={values.tasks}", "evaluation.seeds=[1,2]"]
    words = ["evaluate", "--config", str(MICRO), "--overrides", *settings]
    with tempfile.TemporaryDirectory(prefix="r2v-helpers-") as scratch:
        project = values.project or Path(scratch) / "made"
        if not values.project:
            project.mkdir()
            pid = measured(
                project, ["run", "--config", str(MICRO), "--without", "evaluate", "ablations"], project / "run.json"
            )
            if os.waitpid(pid, 0)[1]:
                raise SystemExit((project / "run.log").read_text()[-2000:])
        by_count = {}
        for count in (0, *values.helpers):
            folder = Path(scratch) / f"with-{count}"
            shutil.copytree(project, folder, symlinks=True)
            block = values.block if count else "auto"
            spent = evaluated(folder, [*words, f"rollout.episodes_per_block={block}"], count)
            by_count[count] = (spent, *result(folder))
            print_cost(count, spent, by_count[count][2])
    alone, files, _ = by_count[0]
    failed = False
    for count in values.helpers:
        spent, others, _ = by_count[count]
        if files != others:
            print("the results differ:", sorted(name for name in files if files[name] != others.get(name)))
            return 1
        cost = sum(process.playing for process in spent) / alone[0].playing
        slowest = max(process.playing for process in spent) * len(spent) / sum(process.playing for process in spent)
        print(
            f"{count} helpers: {len(files)} files equal, CPU of playing {cost:.2f}x (at most {MOST_CPU}); "
            f"slowest {slowest:.2f}x the mean (at most {MOST_SLOWEST})"
        )
        failed |= cost > MOST_CPU or slowest > MOST_SLOWEST
    return int(failed)


def print_cost(count: int, spent: Sequence[Spent], episodes: int) -> None:
    """Print the cost of an evaluation."""
    playing, whole = (sum(getattr(process, field) for process in spent) for field in ("playing", "whole"))
    waves, questions = (sum(getattr(process, field) for process in spent) for field in ("waves", "questions"))
    name = f"with {count} helpers" if count else "one process"
    print(
        f"{name:16s} {1000 * playing / episodes:6.1f} CPU-ms per episode ({whole:.1f} CPU-s in all, {episodes} "
        f"episodes), {questions:.0f} questions in {waves:.0f} waves, CPU-s of playing each: "
        + " ".join(f"{process.playing:.1f}" for process in spent),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
