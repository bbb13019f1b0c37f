"""Kill an evaluation and its helpers at random: every file must equal that of an undisturbed evaluation.

    python benchmarks/helper_kills.py --state /tmp/helper-kills                         # MRP size, 1, 2 and 4 helpers
    python benchmarks/helper_kills.py --state /tmp/kills --config tests/micro.yaml --kills 6

The pipeline is run up to its router, then its evaluation once alone. For each number of helpers the evaluation is then
made again by the stage and its helpers, while one of them, drawn at random, is killed by signal 9 and started again,
--kills times in all. A kill's moment is a keyed share of the episodes to play plus a keyed delay in milliseconds;
episodes that the process had finished must survive it. Progress is kept in --state, and the same command resumes, in
the middle of a piece too. Processes are forked from one that has imported torch.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import datasets  # noqa: F401
import peft  # noqa: F401
import sklearn.linear_model  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401
from trl import DPOTrainer, SFTTrainer  # noqa: F401

from r2v.cli.main import main as r2v_main
from r2v.config import load
from r2v.pipeline.rows import JOIN
from r2v.randomness import generator
from r2v.rollout.episode_cache import KEPT, PUBLISHED
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, git_commit
from r2v.storage.files import write_json
from r2v.storage.integrity import content_files

MRP = Path(__file__).parents[1] / "configs" / "mrp.yaml"
_LOOK = 0.05
"""Seconds between two reads of the finished plays."""
_LATEST = 1.5
"""Seconds after its share of the episodes that a kill comes at most."""


def started(folder: Path, words: Sequence[str], log: Path) -> int:
    """Start a command in a fork and return the id of its process."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os._exit(r2v_main(list(words)))


def ended(pid: int, log: Path) -> None:
    """Wait for a process, which must end with exit code 0."""
    if code := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise SystemExit(f"a process ended with {code}: {log.read_text()[-2000:]}")


def plays(project: Path) -> tuple[int, bool]:
    """Return the evaluation's number of recorded plays, and True if it is finished."""
    lines, finished = 0, False
    for folder in project.glob("outputs/.episodes/evaluate-*"):
        finished |= (folder / PUBLISHED).exists()
        for path in folder.glob("*.jsonl"):
            try:
                lines += path.read_bytes().count(b"\n")
            except FileNotFoundError:
                finished = True
    return lines, finished


def result(project: Path, prefix: str) -> dict[str, str]:
    """Return the hashes of the evaluation's files."""
    return content_files((project / "results" / prefix).resolve())


def undisturbed(values: argparse.Namespace) -> None:
    """Run the pipeline up to its router, and its evaluation alone."""
    project, alone = values.state / "made", values.state / "alone"
    if not (values.state / "made.json").exists():
        project.mkdir(exist_ok=True)
        log = values.state / "made.log"
        ended(started(project, ["run", "--config", str(values.config), "--without", "evaluate", "ablations"], log), log)
        write_json(values.state / "made.json", {})
    if not (values.state / "alone.json").exists():
        shutil.rmtree(alone, ignore_errors=True)
        shutil.copytree(project, alone, symlinks=True)
        log = values.state / "alone.log"
        ended(started(alone, values.words, log), log)
        folder = (alone / "results" / values.prefix).resolve()
        cache = alone / "outputs/.episodes" / folder.name
        published = len(json.loads((cache / PUBLISHED).read_text())["plays"])
        calibrated = len((cache / KEPT).read_bytes().splitlines()) if (cache / KEPT).exists() else 0
        episodes = json.loads((folder / ARTIFACT_MANIFEST).read_text())["summary"]["n_episodes"]
        record = {
            "commit": git_commit(),
            "plays": published + calibrated,
            "episodes": episodes,
            "files": result(alone, values.prefix),
        }
        write_json(values.state / "alone.json", record)


def disturbed(count: int, values: argparse.Namespace) -> bool:
    """Run the evaluation by the stage and `count` helpers, with kills; True if its files equal those of `alone`."""
    project, about, log = (values.state / f"with-{count}{end}" for end in ("", ".json", ".log"))
    state = json.loads(about.read_text()) if about.exists() else {"killed": [], "different": None}
    alone = json.loads((values.state / "alone.json").read_text())
    if not (project / "begun").exists():
        shutil.rmtree(project, ignore_errors=True)
        shutil.copytree(values.state / "made", project, symlinks=True)
        (project / "begun").touch()
    if state["different"] is None:
        _kill_and_start(count, project, state, alone["plays"], values)
        files = result(project, values.prefix)
        state["different"] = sorted(
            name for name in files | alone["files"] if files.get(name) != alone["files"].get(name)
        )
        write_json(about, state)
    killed, different = state["killed"], state["different"]
    print(
        f"{count} helpers: {len(killed)} kills, {killed.count(0)} of the stage itself; {alone['episodes']} episodes in "
        f"{len(alone['files'])} files, {f'different: {different}' if different else 'every byte is the same'}",
        flush=True,
    )
    if not different:
        shutil.rmtree(project)
        log.unlink(missing_ok=True)
    return not different


def _kill_and_start(
    count: int, project: Path, state: dict[str, list[int]], whole: int, values: argparse.Namespace
) -> None:
    about, log = values.state / f"with-{count}.json", values.state / f"with-{count}.log"

    def start(number: int) -> int:
        return started(project, [*values.words, *(JOIN if number else [])], log)

    draw = generator("helper kills", count)
    moments = sorted(draw.uniform(0.0, 0.95) * whole for _ in range(values.kills))
    victims = [draw.choice(range(1 + count)) for _ in moments]
    running, lines_before = [start(number) for number in range(1 + count)], 0
    try:
        for number in range(len(state["killed"]), values.kills):
            while (now := plays(project))[0] < moments[number] and not now[1]:
                time.sleep(_LOOK)
            if now[1]:
                break
            time.sleep(generator("helper kills", count, number).uniform(0.0, _LATEST))
            victim = victims[number]
            os.killpg(running[victim], signal.SIGKILL)
            os.waitpid(running[victim], 0)
            lines, finished = plays(project)
            assert finished or lines >= lines_before, "a recorded play was lost"
            lines_before = lines
            running[victim] = start(victim)
            state["killed"].append(victim)
            write_json(about, state)
            print(f"  {count} helpers, kill {number + 1}: process {victim} at {lines} of {whole} plays", flush=True)
        while running:
            ended(running.pop(0), log)
        ended(start(0), log)
    finally:
        for pid in running:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=MRP)
    parser.add_argument("--state", type=Path, required=True, help="folder of the progress so far")
    parser.add_argument("--helpers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--kills", type=int, default=20, help="for each number of helpers (default: 20)")
    parser.add_argument("--block", default="16", help="rollout.episodes_per_block (default: 16)")
    parser.add_argument("--overrides", nargs="+", default=[], help="further settings of the evaluation")
    values = parser.parse_args()
    values.config, values.state = values.config.resolve(), values.state.resolve()
    values.prefix = load(values.config).prefix
    settings = [f"rollout.episodes_per_block={values.block}", *values.overrides]
    values.words = ["evaluate", "--config", str(values.config), "--overrides", *settings]
    values.state.mkdir(parents=True, exist_ok=True)
    undisturbed(values)
    alone = json.loads((values.state / "alone.json").read_text())
    if alone["commit"] != git_commit():  # which results name
        print(f"{values.state} was made at commit {alone['commit']}; resume there, or name another --state")
        return 2
    same = [disturbed(count, values) for count in values.helpers]
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{spent.ru_utime + spent.ru_stime:.0f} CPU-s in this call")
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
