"""Kills at random moments: the same command again, until it ends, must leave the same bytes.

    python benchmarks/kills.py                       # 100 kills; Ctrl-C and the same command go on
    python benchmarks/kills.py --kills 20 --state /tmp/kills

A whole small pipeline (`tests/micro.yaml`, or --config) is run once undisturbed. Then, round after round in a fresh
folder, `r2v run` is killed by signal 9 after a keyed CPU time and started again, until it ends; every content file of
every artifact, and every table, must be that of the undisturbed run. What was killed where is kept in --state, so a
hundred kills may be made in pieces. Processes are forked from one that has imported torch, which saves seconds a kill.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
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
from r2v.randomness import uniform
from r2v.storage.artifact import ARTIFACT_MANIFEST, content_files
from r2v.storage.files import content_sha256, write_json

MICRO = Path(__file__).parents[1] / "tests" / "micro.yaml"
LONGEST = 10.0
"""CPU seconds that an attempt lives, at most."""
_TICKS = os.sysconf("SC_CLK_TCK")
_POLL_SECONDS = 0.01


def started(folder: Path, config: Path, log: Path) -> int:
    """`r2v run` in a folder; the id of its process."""
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
    """CPU time of a living process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def ended(pid: int, allowed: float) -> int | None:
    """The exit code of a process, or None where it was killed after the CPU time that it is allowed."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if cpu_seconds(pid) >= allowed:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(_POLL_SECONDS)


def content(folder: Path) -> dict[str, str]:
    """The hash of every content file of every artifact, read anew, and of every table."""
    hashes = {}
    for manifest in sorted(folder.glob(f"outputs/.artifacts/*/{ARTIFACT_MANIFEST}")):
        recorded = json.loads(manifest.read_text())["files"]
        read = content_files(manifest.parent)
        hashes |= {f"{manifest.parent.name}/{name}": read.get(name, "missing") for name in recorded}
        hashes |= {f"{manifest.parent.name}/{name}": "stray" for name in read.keys() - recorded.keys()}
    for table in sorted(folder.glob("results/**/structured_results/*")):
        hashes[table.relative_to(folder).as_posix()] = content_sha256(table)
    return hashes


def litter(folder: Path) -> list[str]:
    """What a finished pipeline must not leave: leases and drafts."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    return [name for name in names if name.endswith((".lease", ".tmp")) and "replay" not in name]


def stage_of(log: Path, before: int) -> str:
    """The stage that was running when the log ended."""
    running = [line.split()[0] for line in log.read_text()[before:].splitlines() if line.endswith(" running")]
    return running[-1] if running else "(starting)"


def play_round(number: int, state: dict[str, Any], values: argparse.Namespace, save: Any) -> list[str]:
    """Kill and start again until the pipeline ends or enough were killed; what then differs."""
    folder, log = values.state / f"round-{number}", values.state / f"round-{number}.log"
    folder.mkdir(exist_ok=True)
    while True:
        kill = len(state["kills"]) < values.kills
        allowed = 0.2 + LONGEST * uniform("kills", number, state["attempts"]) if kill else 1e9
        before = len(log.read_text()) if log.exists() else 0
        code = ended(started(folder, values.config, log), allowed)
        state["attempts"] += 1
        if code is None:
            state["kills"].append(stage_of(log, before))
            save()
            print(f"  kill {len(state['kills']):3} in round {number}: {state['kills'][-1]}", flush=True)
        elif code:
            return [f"round {number}: `r2v run` ended with {code}; see {log}"]
        else:
            break
    found, expected = content(folder), state["expected"]
    wrong = [name for name in sorted(found.keys() | expected.keys()) if found.get(name) != expected.get(name)]
    wrong += litter(folder)
    if not wrong:
        shutil.rmtree(folder)
    return [f"round {number}: {name} differs" for name in wrong]


def main() -> int:
    """Kill, compare, print; 1 where a byte differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="in all (default: 100)")
    parser.add_argument("--state", type=Path, default=Path("/tmp/r2v-kills"), help="folder of what was done so far")
    parser.add_argument("--config", type=Path, default=MICRO, help="the pipeline (default: tests/micro.yaml)")
    values = parser.parse_args()
    values.config, values.state = values.config.resolve(), values.state.resolve()
    values.state.mkdir(parents=True, exist_ok=True)
    kept = values.state / "state.json"
    state = json.loads(kept.read_text()) if kept.exists() else {}

    def save() -> None:
        write_json(kept, state)

    if not state:
        whole = values.state / "undisturbed"
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()
        if ended(started(whole, values.config, values.state / "undisturbed.log"), 1e9):
            print(f"the undisturbed run failed; see {values.state}/undisturbed.log")
            return 1
        state |= {"kills": [], "attempts": 0, "round": 0, "wrong": [], "expected": content(whole)}
        save()
    while len(state["kills"]) < values.kills or (values.state / f"round-{state['round']}").exists():
        state["wrong"] += play_round(state["round"], state, values, save)
        state["round"] += 1
        save()
        print(f"round {state['round']} has ended: {state['wrong'] or 'every byte is the same'}", flush=True)
    for stage, count in Counter(state["kills"]).most_common():
        print(f"{stage:20} {count:4} kills")
    files, kills = len(state["expected"]), len(state["kills"])
    print(f"{kills} kills in {state['round']} rounds, {files} files each: {state['wrong'] or 'every byte is the same'}")
    return 1 if state["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
