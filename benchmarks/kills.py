"""Kill a pipeline at random moments and repeat its command until it ends: every byte must be the same.

    python benchmarks/kills.py                       # 100 kills; Ctrl-C and the same command go on
    python benchmarks/kills.py --kills 20 --state /tmp/kills

A whole small pipeline (`tests/micro.yaml`, or --config) is run once undisturbed. Then, round after round in a fresh
folder, `r2v run` is killed by signal 9 and started again, until it ends; every content file of every artifact, and
every table, must equal that of the undisturbed run. A kill's stage is drawn first, so that short stages get as many as
long ones, and then its moment: a keyed share of the stage's undisturbed CPU time. The kills are recorded in --state, so
a hundred of them may be made in several calls. Processes are forked from one that has imported torch, which saves
seconds per kill.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from r2v.pipeline.jobs import JOBS
from r2v.randomness import uniform
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, git_commit
from r2v.storage.files import content_sha256, write_json
from r2v.storage.integrity import content_files

MICRO = Path(__file__).parents[1] / "tests" / "micro.yaml"
START = "(start)"
"""Name of the phase before a process runs its first stage."""
_POLL_SECONDS = 0.002


def started(folder: Path, config: Path, log: Path) -> int:
    """Start `r2v run` in a folder and return the id of its process."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os._exit(r2v_main(["run", "--config", str(config)]))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a living process's first thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@dataclass(kw_only=True)
class Attempt:
    """One process of `r2v run`, watched through its log until it ends or is killed."""

    pid: int
    log: Path
    stages: tuple[str, ...]
    offset: int = 0
    place: str = START
    since: float = 0.0
    spans: dict[str, float] = field(default_factory=dict)
    """CPU seconds from the start of each place to the start of the next."""

    def look(self) -> float:
        """Read new log lines; return the CPU seconds that the process has spent in its current stage."""
        now = cpu_seconds(self.pid)
        with self.log.open("rb") as file:
            file.seek(self.offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.decode().splitlines():
            stage = line.split(" ")[0]
            # Ablations run stages of their own, which log the same line: their own stage is the last of all.
            if line.endswith(" running") and stage in self.stages and self.place != self.stages[-1]:
                self.place, self.since = stage, now
        self.spans[self.place] = now - self.since
        return now - self.since

    def end(self, moments: Mapping[str, float]) -> int | None:
        """Return its exit code; None if it was killed on reaching the moment that `moments` gives for a stage."""
        while True:
            spent = self.look()  # before the wait: a reaped process has no CPU time
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if spent >= moments.get(self.place, math.inf):
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return None
            time.sleep(_POLL_SECONDS)


def attempt(folder: Path, values: argparse.Namespace, log: Path) -> Attempt:
    """Start `r2v run` in a folder, its words at the end of a log."""
    log.touch()
    offset = log.stat().st_size
    return Attempt(pid=started(folder, values.config, log), log=log, stages=values.stages, offset=offset)


def content(folder: Path) -> dict[str, str]:
    """Return the hash of every content file of every artifact, and of every table."""
    hashes: dict[str, str] = {}
    for manifest in sorted(folder.glob(f"outputs/.artifacts/*/{ARTIFACT_MANIFEST}")):
        recorded = json.loads(manifest.read_text())["files"]
        read = content_files(manifest.parent)
        hashes |= {f"{manifest.parent.name}/{name}": read.get(name, "missing") for name in recorded}
        hashes |= {f"{manifest.parent.name}/{name}": "stray" for name in read.keys() - recorded.keys()}
    for table in sorted(folder.glob("results/**/structured_results/*")):
        hashes[table.relative_to(folder).as_posix()] = content_sha256(table)
    return hashes


def litter(folder: Path) -> list[str]:
    """Return the leases and drafts below a folder; a finished pipeline leaves none."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    return [name for name in names if name.endswith((".lease", ".tmp")) and "replay" not in name]


def drawn_kills(number: int, state: dict[str, Any], each: int) -> dict[str, int]:
    """Return a round's number of kills per stage: one or two, while the stage has had fewer than `each`."""
    counts = Counter(state["kills"])
    twice = {stage: uniform("kills", number, stage) < 0.5 for stage in state["spans"]}
    return {stage: min(2 if twice[stage] else 1, each - counts[stage]) for stage in twice if counts[stage] < each}


def play_round(number: int, state: dict[str, Any], values: argparse.Namespace, save: Callable[[], None]) -> list[str]:
    """Kill and restart until the pipeline ends; record the files that differ."""
    folder, log = values.state / f"round-{number}", values.state / f"round-{number}.log"
    folder.mkdir(exist_ok=True)
    kills = drawn_kills(number, state, values.each)
    while True:
        moments = {
            stage: state["spans"][stage] * uniform("moment", number, stage, left)
            for stage, left in kills.items()
            if left
        }
        process = attempt(folder, values, log)
        code = process.end(moments)
        if code is None:
            kills[process.place] -= 1
            state["kills"].append(process.place)
            save()
            print(f"  kill {len(state['kills']):3} in round {number}: {process.place}", flush=True)
        elif code:
            return [f"round {number}: `r2v run` ended with exit code {code}; see {log}"]
        else:
            break
    files, expected = content(folder), state["expected"]
    wrong = [name for name in sorted(files.keys() | expected.keys()) if files.get(name) != expected.get(name)]
    wrong += litter(folder)
    if not wrong:
        shutil.rmtree(folder)
    return [f"round {number}: {name} differs" for name in wrong]


def undisturbed(values: argparse.Namespace) -> dict[str, Any] | None:
    """Return the state before the first kill: expected files, and seconds per stage. None if the pipeline fails."""
    folder, log = values.state / "undisturbed", values.state / "undisturbed.log"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    process = attempt(folder, values, log)
    if process.end({}):
        return None
    state = {"kills": [], "round": 0, "wrong": [], "expected": content(folder), "spans": process.spans}
    return {**state, "commit": git_commit()}


def report(state: dict[str, Any]) -> None:
    """Print the number of kills per stage, and the files that differ."""
    counts = Counter(state["kills"])
    for stage, seconds in state["spans"].items():
        print(f"{stage:20} {counts[stage]:4} kills   {seconds:6.2f} CPU-s undisturbed")
    files, kills = len(state["expected"]), len(state["kills"])
    print(f"{kills} kills in {state['round']} rounds, {files} files each: {state['wrong'] or 'every byte is the same'}")


def main() -> int:
    """Kill, compare and print; return 1 if a byte differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=100, help="least number, shared evenly among stages (default: 100)"
    )
    parser.add_argument("--state", type=Path, default=Path("/tmp/r2v-kills"), help="folder of the progress so far")
    parser.add_argument("--config", type=Path, default=MICRO, help="the pipeline (default: tests/micro.yaml)")
    values = parser.parse_args()
    values.config, values.state = values.config.resolve(), values.state.resolve()
    values.stages = tuple(row.name for row in JOBS if row.enabled(load(str(values.config))))
    values.each = math.ceil(values.kills / (len(values.stages) + 1))
    values.state.mkdir(parents=True, exist_ok=True)
    state_file = values.state / "state.json"
    state = json.loads(state_file.read_text()) if state_file.exists() else undisturbed(values)
    if state is None:
        print(f"the undisturbed run failed; see {values.state}/undisturbed.log")
        return 1

    def save() -> None:
        write_json(state_file, state)

    save()
    if state.get("commit") != git_commit():  # which results name
        print(f"{values.state} was made at another commit; name another --state")
        return 1
    if {*values.stages, START} != state["spans"].keys():
        print(f"{values.state} has stages {sorted(state['spans'])}, not {sorted(values.stages)}; name another --state")
        return 1
    while min(Counter(state["kills"])[stage] for stage in state["spans"]) < values.each:
        state["wrong"] += play_round(state["round"], state, values, save)
        state["round"] += 1
        save()
        print(f"round {state['round']} ended: {state['wrong'] or 'every byte is the same'}", flush=True)
    report(state)
    return 1 if state["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
