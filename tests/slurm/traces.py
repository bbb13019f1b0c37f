"""Traces: step by step, the states of jobs that wait for each other, as R2V's interface to Slurm reports them.

    recorded = trace("behind a failure", SCENARIOS["behind a failure"], RealCluster(cluster, folder))
    replayed = trace("behind a failure", SCENARIOS["behind a failure"], Replay())     # of the simulator; equal

A scenario is a list of steps. After each, when no job changes any more, the state of every job is noted: Slurm's word,
its reason and dependency while it waits, its comment's mark. `benchmarks/slurm_traces.py` records all scenarios on a
real Slurm into traces.json; test_simulator.py has the simulator replay them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from r2v.slurm.client import client
from r2v.slurm.client.client import Queued
from r2v.slurm.client.command import SlurmRefused
from tests.slurm.cluster import Cluster
from tests.slurm.simulator import MIN_JOB_AGE, REQUEUE_WAIT, SimulatedSlurm

RECORDED = Path(__file__).with_name("traces.json")
Step = tuple[str, ...]
KILLED = "--kill-on-invalid-dep=yes"
PARENT_AND_CHILD: list[Step] = [("submit", "a"), ("submit", "b", "--dependency=afterok:a")]
TWO_PARENTS: list[Step] = [("submit", "a"), ("submit", "b"), ("submit", "c", "--dependency=afterok:a:b")]
ENDS = {
    "exit 0": ("COMPLETED", "0:0"),
    "exit 7": ("FAILED", "7:0"),
    "kill -9 $$": ("FAILED", "0:9"),
    "sleep 600": ("TIMEOUT", "0:0"),
}
"""The last line of a job's script, and Slurm's state of a job that ends so."""
SCENARIOS: dict[str, list[Step]] = {
    "ends well": [("submit", "a"), ("end", "a", "exit 0"), ("show", "a")],
    "fails": [("submit", "a"), ("end", "a", "exit 7"), ("show", "a")],
    "killed by a signal": [*PARENT_AND_CHILD, ("end", "a", "kill -9 $$")],
    "at its time limit": [
        ("submit", "a", "--time=1"),
        ("submit", "b", "--dependency=afternotok:a"),
        ("submit", "c", "--dependency=afterok:a"),
        ("end", "a", "sleep 600"),
        ("end", "b", "exit 0"),
    ],
    "three in a row": [
        *PARENT_AND_CHILD,
        ("submit", "c", "--dependency=afterok:b"),
        ("end", "a", "exit 0"),
        ("end", "b", "exit 0"),
        ("end", "c", "exit 0"),
    ],
    "behind a failure": [
        *PARENT_AND_CHILD,
        ("submit", "c", "--dependency=afterok:b"),
        ("end", "a", "exit 7"),
        ("cancel", "b"),
    ],
    "behind a failure, where it may be ended": [
        ("submit", "a"),
        ("submit", "b", "--dependency=afterok:a", KILLED),
        ("submit", "c", "--dependency=afterok:b"),
        ("end", "a", "exit 7"),
    ],
    "a sentinel of a success": [
        ("submit", "a"),
        ("submit", "s", "--dependency=afternotok:a", KILLED),
        ("end", "a", "exit 0"),
        ("show", "s"),
    ],
    "a sentinel that may not be ended": [
        ("submit", "a"),
        ("submit", "s", "--dependency=afternotok:a"),
        ("end", "a", "exit 0"),
        ("cancel", "s"),
    ],
    "a sentinel of a failure": [
        ("submit", "a"),
        ("submit", "s", "--dependency=afternotok:a", KILLED),
        ("submit", "b", "--dependency=afterok:a"),
        ("end", "a", "exit 7"),
        ("submit", "a2"),
        ("update", "b", "dependency=afterok:a2", "comment=b"),
        ("end", "s", "exit 0"),
        ("end", "a2", "exit 0"),
        ("end", "b", "exit 0"),
    ],
    "a sentinel in any case": [
        ("submit", "a"),
        ("submit", "s", "--dependency=afterany:a"),
        ("end", "a", "exit 0"),
        ("end", "s", "exit 0"),
    ],
    "two parents": [*TWO_PARENTS, ("end", "b", "exit 0"), ("end", "a", "exit 0"), ("end", "c", "exit 0")],
    "two parents, the second fails": [*TWO_PARENTS, ("end", "a", "exit 0"), ("end", "b", "exit 7")],
    "two parents, the first fails": [
        *TWO_PARENTS,
        ("end", "a", "exit 7"),
        ("end", "b", "exit 0"),
        ("submit", "a2"),
        ("update", "c", "dependency=afterok:a2"),
        ("end", "a2", "exit 0"),
    ],
    "pointed elsewhere as it waits": [
        *PARENT_AND_CHILD,
        ("submit", "a2"),
        ("update", "b", "dependency=afterok:a2"),
        ("end", "a", "exit 7"),
        ("end", "a2", "exit 0"),
    ],
    "pointed to nothing": [*PARENT_AND_CHILD, ("update", "b", "dependency="), ("end", "b", "exit 0")],
    "pointed elsewhere too late": [
        *PARENT_AND_CHILD,
        ("end", "a", "exit 0"),
        ("update", "b", "dependency=afterok:a"),
        ("end", "b", "exit 0"),
        ("update", "b", "dependency="),
    ],
    "a new comment": [*PARENT_AND_CHILD, ("update", "b", "comment=other"), ("end", "a", "exit 0")],
    "a running parent is cancelled": [
        *PARENT_AND_CHILD,
        ("submit", "s", "--dependency=afternotok:a", KILLED),
        ("cancel", "a"),
        ("cancel", "a"),
    ],
    "a waiting child is cancelled": [
        *PARENT_AND_CHILD,
        ("submit", "c", "--dependency=afterok:b"),
        ("submit", "s", "--dependency=afternotok:b", KILLED),
        ("cancel", "b"),
    ],
    "behind one that has ended well": [
        ("submit", "a"),
        ("end", "a", "exit 0"),
        ("submit", "b", "--dependency=afterok:a"),
        ("submit", "s", "--dependency=afternotok:a", KILLED),
        ("end", "b", "exit 0"),
    ],
    "behind one that has failed": [
        ("submit", "a"),
        ("end", "a", "exit 7"),
        ("submit", "b", "--dependency=afterok:a"),
        ("submit", "s", "--dependency=afternotok:a", KILLED),
    ],
    "put back into the queue": [*PARENT_AND_CHILD, ("requeue", "a"), ("await", "a"), ("end", "a", "exit 0")],
    "forgotten": [("submit", "a"), ("end", "a", "exit 0"), ("forget", "a"), ("show", "a")],
}


class Bed(Protocol):
    """The cluster of a scenario: it ends jobs and lets time pass; the rest goes through R2V's interface to Slurm."""

    def arguments(self, name: str) -> list[str]:
        """Return the options of sbatch that its jobs need."""

    def end(self, id_: str, name: str, how: str) -> None:
        """End a running job in this way."""

    def settle(self, forgotten: str = "") -> None:
        """Return when no job changes any more, and the controller has forgotten this job."""


class RealCluster:
    """A real Slurm, whose environment is this process's. Each job waits for a file with its last line."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder

    def arguments(self, name: str) -> list[str]:
        """Return the job's folder and output; its script gives the rest."""
        return [f"--chdir={self.folder}", "--output=/dev/null", "--requeue", f"--export=ALL,LAST={name}"]

    def end(self, id_: str, name: str, how: str) -> None:
        """Write the job's last line."""
        draft = self.folder / f"{name}.new"
        draft.write_text(f"{how}\n")
        draft.replace(self.folder / name)
        self.cluster.wait(lambda: id_ not in {row.id for row in client.queue()}, timeout=180)

    def settle(self, forgotten: str = "") -> None:
        """Wait until two seconds have changed nothing and no job is about to start or to end."""
        if forgotten:
            self.cluster.wait(lambda: not client.show(forgotten), timeout=300, every=1)
        waiting = ("Dependency", "DependencyNeverSatisfied", "BeginTime")
        before: list[Queued] = []

        def still() -> bool:
            nonlocal before
            rows = client.queue(ended=True)
            moving = [
                row
                for row in rows
                if row.state in ("COMPLETING", "CONFIGURING") or (row.state == "PENDING" and row.reason not in waiting)
            ]
            same = not moving and [_plain(row) for row in rows] == [_plain(row) for row in before]
            before = rows
            return same

        self.cluster.wait(still, timeout=120, every=2)


class Replay:
    """The simulator; the caller enters `through(bed.slurm)`."""

    def __init__(self) -> None:
        self.slurm = SimulatedSlurm()

    def arguments(self, name: str) -> list[str]:
        """Return no options."""
        return []

    def end(self, id_: str, name: str, how: str) -> None:
        """End the job with Slurm's state for this end."""
        self.slurm.finish(self.slurm.jobs[id_], *ENDS[how])

    def settle(self, forgotten: str = "") -> None:
        """Let it forget the job, or start a requeued one."""
        self.slurm.sleep(2 * MIN_JOB_AGE if forgotten else 0.0)


def trace(name: str, steps: Sequence[Step], bed: Bed) -> dict[str, Any]:
    """Play a scenario; return each step's answer and the states behind it, and at last the accounting."""
    ids: dict[str, str] = {}
    rows = [_played(step, ids, bed) for step in steps]
    return {"name": name, "steps": rows, "accounting": _accounted(ids)}


def _played(step: Step, ids: dict[str, str], bed: Bed) -> dict[str, Any]:
    verb, name, *words = step
    answer: Any = None
    words = [re.sub(r"(?<=:)[a-z]\w*", lambda word: ids[word[0]], word) for word in words]
    if verb == "submit":
        comment = f"--comment=r2v:trace/{name}/ab"
        ids[name] = client.sbatch([f"--job-name={name}", comment, *bed.arguments(name), *words], _SCRIPT)
    elif verb == "end":
        bed.end(ids[name], name, words[0])
    elif verb == "cancel":
        client.cancel([ids[name]])
    elif verb == "update":
        answer = client.update(ids[name], **dict(word.split("=", 1) for word in words))
    elif verb == "requeue":
        answer = client.requeue(ids[name])
    elif verb == "show":
        answer = {key: value for key, value in client.show(ids[name]).items() if key in ("JobState", "ExitCode")}
    if verb == "await":
        _until(bed, lambda: any(row.id == ids[name] and row.state == "RUNNING" for row in client.queue()))
    bed.settle(ids[name] if verb == "forget" else "")
    return {"step": list(step), "answer": answer, "states": _states(ids)}


def _until(bed: Bed, happened: Callable[[], bool]) -> None:
    if isinstance(bed, RealCluster):
        bed.cluster.wait(happened)
    elif isinstance(bed, Replay):
        bed.slurm.sleep(REQUEUE_WAIT)


def _states(ids: Mapping[str, str]) -> dict[str, str]:
    """Return every job that the controller remembers: its state, its mark and, while it waits, the reason and
    dependency."""
    names = {id_: name for name, id_ in ids.items()}
    rows = {names[row.id]: row for row in client.queue(ended=True) if row.id in names}
    return {name: " ".join(_plain(rows[name], names)) for name in ids if name in rows}


def _plain(row: Queued, names: Mapping[str, str] | None = None) -> list[str]:
    if row.state != "PENDING":
        return [row.state, row.comment]
    waits = re.sub(r"\(\w+\)", "", row.dependency)
    return [row.state, row.reason, re.sub(r"\d+", lambda id_: (names or {}).get(id_[0], "?"), waits), row.comment]


def _accounted(ids: Mapping[str, str]) -> dict[str, str]:
    known = client.accounting(list(ids.values())).jobs
    return {name: known[id_][-1].state for name, id_ in ids.items() if known.get(id_)}


def recorded() -> list[dict[str, Any]]:
    """Return the traces of the real cluster."""
    traces: list[dict[str, Any]] = json.loads(RECORDED.read_text())["traces"]
    return traces


_SCRIPT = """#!/bin/bash
while [ ! -e "$LAST" ]; do sleep 0.1; done
source "$LAST"
"""
__all__ = ["ENDS", "RECORDED", "SCENARIOS", "RealCluster", "Replay", "SlurmRefused", "recorded", "trace"]
