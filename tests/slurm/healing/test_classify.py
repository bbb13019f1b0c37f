"""Each class of failure from the evidence that Slurm and the stage leave of it.

The rows marked (doc) are built from Slurm's documentation: this machine has no cgroups, so no OUT_OF_MEMORY.
"""

from __future__ import annotations

from typing import Any

import pytest

from r2v.slurm.client import SacctRow
from r2v.slurm.healing.classify import REMEDIES, Evidence, classify, failure_kind, last_line

MB = 1 << 20
OOM_TEXT = "step 3\nslurmstepd-g1: error: StepId=59.batch exceeded memory limit (268698624 > 262144000), being killed\n"


def row(state: str, **values: Any) -> SacctRow:
    return SacctRow(id="7", state=state, **values)


def error(kind: str, message: str = "it broke") -> dict[str, Any]:
    return {"type": "ValueError", "kind": kind, "exit_code": 1, "message": message, "where": "r2v/x.py:3"}


def exit_(rc: int, kind: str | None = None, line: str = "", **values: Any) -> dict[str, Any]:
    return {"rc": rc, "signal": 0, "kind": kind, "line": line, "restart": 0, **values}


CASES: dict[str, tuple[Evidence, str | None]] = {
    "nobody knows it yet": (Evidence(), None),
    "it waits": (Evidence(scontrol={"JobState": "PENDING"}, error=error("bug")), None),
    "it runs again after a requeue": (Evidence(scontrol={"JobState": "RUNNING"}, row=row("PREEMPTED")), None),
    "done": (Evidence(exit=exit_(0), row=row("COMPLETED")), None),
    "done, and Slurm has forgotten it": (Evidence(exit=exit_(0)), None),
    "done by its own word, killed by Slurm (doc)": (Evidence(exit=exit_(0), row=row("OUT_OF_MEMORY")), "host_oom"),
    "done by its own word, failed by Slurm's": (Evidence(exit=exit_(0), row=row("FAILED", signal=9)), "killed"),
    "cgroup (doc)": (Evidence(row=row("OUT_OF_MEMORY", signal=125)), "host_oom"),
    "cgroup, state FAILED (doc)": (
        Evidence(row=row("FAILED", signal=125, max_rss=199 * MB, requested=200 * MB)),
        "host_oom",
    ),
    "OverMemoryKill, told by accounting": (
        Evidence(row=row("FAILED", signal=9, max_rss=610 * MB, requested=200 * MB)),
        "host_oom",
    ),
    "OverMemoryKill, told by the log": (
        Evidence(scontrol={"JobState": "FAILED", "ExitCode": "0:9"}, log=OOM_TEXT),
        "host_oom",
    ),
    "137 of a shell, near the limit": (
        Evidence(row=row("FAILED", exit_code=137, max_rss=190 * MB, requested=200 * MB)),
        "host_oom",
    ),
    "137 of a shell, far from it": (
        Evidence(row=row("FAILED", exit_code=137, max_rss=20 * MB, requested=200 * MB)),
        "killed",
    ),
    "the runner saw the child die of memory": (
        Evidence(exit=exit_(137, "host_oom", signal=9), row=row("FAILED", exit_code=137)),
        "host_oom",
    ),
    "the runner saw it killed": (Evidence(exit=exit_(137, "killed", signal=9), row=row("FAILED")), "killed"),
    "Python's MemoryError": (Evidence(error=error("host_oom"), row=row("FAILED", exit_code=1)), "host_oom"),
    "CUDA by the stage's word": (
        Evidence(exit=exit_(1, "cuda_oom"), error=error("cuda_oom"), row=row("FAILED", exit_code=1)),
        "cuda_oom",
    ),
    "CUDA by the log": (
        Evidence(row=row("FAILED", exit_code=1), log="x\ntorch.OutOfMemoryError: CUDA out of memory."),
        "cuda_oom",
    ),
    "time limit": (Evidence(row=row("TIMEOUT")), "timeout"),
    "time limit, after a checkpoint": (
        Evidence(exit=exit_(75, "interrupted"), row=row("FAILED", exit_code=75)),
        "interrupted",
    ),
    "75 without a record": (Evidence(row=row("FAILED", exit_code=75)), "interrupted"),
    "interrupted, by its own word": (
        Evidence(error=error("interrupted"), row=row("FAILED", exit_code=1)),
        "interrupted",
    ),
    "deadline": (Evidence(row=row("DEADLINE")), "timeout"),
    "preempted for good": (Evidence(row=row("PREEMPTED")), "preempted"),
    "node": (Evidence(row=row("NODE_FAIL", nodes="g1")), "node_fail"),
    "boot": (Evidence(scontrol={"JobState": "BOOT_FAIL", "NodeList": "g1"}), "node_fail"),
    "bug": (Evidence(exit=exit_(1, "bug", "ValueError: 43"), row=row("FAILED", exit_code=1)), "bug"),
    "bug without a record": (Evidence(row=row("FAILED", exit_code=1), log="Traceback\nValueError: 43\n"), "bug"),
    "usage": (Evidence(row=row("FAILED", exit_code=2)), "usage"),
    "input": (Evidence(error=error("input"), row=row("FAILED", exit_code=3)), "input"),
    "empty": (Evidence(row=row("FAILED", exit_code=4)), "empty"),
    "provider": (Evidence(row=row("FAILED", exit_code=5)), "environment"),
    "a lease of another process": (Evidence(row=row("FAILED", exit_code=6)), "lease_conflict"),
    "somebody cancelled it": (Evidence(row=row("CANCELLED", by="1000"), error=error("interrupted")), "cancelled"),
    "somebody cancelled it as it waited": (Evidence(row=row("CANCELLED", by="1000"), started=False), "cancelled"),
    "its parent took it along": (
        Evidence(scontrol={"JobState": "CANCELLED", "Reason": "DependencyNeverSatisfied"}, started=False),
        "dependency",
    ),
    "its parent took it along, by accounting": (Evidence(row=row("CANCELLED"), started=False), "dependency"),
    "cancelled as it waited, by the controller's word": (
        Evidence(scontrol={"JobState": "CANCELLED", "Reason": "Dependency"}, started=False),
        "cancelled",
    ),
    "no log folder": (Evidence(scontrol={"JobState": "FAILED", "ExitCode": "0:53"}), "no_log"),
    "a step failed in a script that went on": (Evidence(row=row("COMPLETED", derived=6), log="srun: error"), "bug"),
    "a segmentation fault": (Evidence(row=row("FAILED", signal=11)), "bug"),
    "0 and no artifact": (Evidence(exit=exit_(1, "bug", "ended with 0"), row=row("FAILED", exit_code=1)), "bug"),
    "late accounting does not undo the controller's word": (
        Evidence(scontrol={"JobState": "TIMEOUT"}, row=row("RUNNING")),
        "timeout",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_class_follows_from_the_evidence(name: str) -> None:
    told, kind = CASES[name]
    found = classify(told)
    assert (found.kind if found else None) == kind
    if found is not None:
        assert "\n" not in found.line and found.kind in REMEDIES
        assert REMEDIES[found.kind].format(name="desk_noisy", job="bc")


def test_the_line_is_the_one_that_tells_it_best() -> None:
    said = "step 1\nTraceback (most recent call last):\nKeyError: 'x'\nslurmstepd: error: JOB 7\nr2v job 7: failed\n"
    assert last_line(said) == "KeyError: 'x'" and last_line("") == ""
    bug = classify(Evidence(error=error("bug", "the answer is 43"), row=row("FAILED", exit_code=1)))
    assert bug is not None and bug.line == "ValueError: the answer is 43 (r2v/x.py:3)"
    oom = classify(Evidence(scontrol={"JobState": "FAILED", "ExitCode": "0:9"}, log=OOM_TEXT))
    assert oom is not None and "268698624 > 262144000" in oom.line
    measured = classify(Evidence(row=row("FAILED", signal=9, max_rss=610 * MB, requested=200 * MB)))
    assert measured is not None and "610 MB used, 200 MB asked for" in measured.line


def test_a_stage_s_end_by_its_code_and_its_record() -> None:
    assert [failure_kind(code, None) for code in (0, 1, 2, 3, 4, 5, 6, 75, -11, -9, 137)] == [
        None,
        "bug",
        "usage",
        "input",
        "empty",
        "environment",
        "lease_conflict",
        "interrupted",
        "bug",
        None,
        None,
    ]
    assert failure_kind(1, error("cuda_oom")) == "cuda_oom" and failure_kind(1, error("interrupted")) == "interrupted"
