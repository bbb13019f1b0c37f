"""Classification of failures, class by class, from the evidence of Slurm and of the stage.

The rows marked (doc) are built from Slurm's documentation: this machine has no cgroups, so no OUT_OF_MEMORY.
"""

from __future__ import annotations

from typing import Any

import pytest

from r2v.slurm.client.sacct import SacctRow
from r2v.slurm.healing.classify import (
    REMEDIES,
    Evidence,
    classify,
    error_line,
    failure_kind,
    last_line,
    near_limit,
)

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
    "killed, and the runner measured more than Slurm did": (
        Evidence(exit=exit_(137, peak_rss_bytes=190 * MB), row=row("FAILED", signal=9, max_rss=MB, requested=200 * MB)),
        "host_oom",
    ),
    "killed, and Slurm measured more than the runner did": (
        Evidence(exit=exit_(137, peak_rss_bytes=MB), row=row("FAILED", signal=9, max_rss=190 * MB, requested=200 * MB)),
        "host_oom",
    ),
    "killed at nine tenths of what the controller says it was given": (
        Evidence(
            exit=exit_(137, peak_rss_bytes=180 * MB),
            scontrol={"JobState": "FAILED", "ExitCode": "0:9", "MinMemoryNode": "200M"},
        ),
        "host_oom",
    ),
    "killed just below nine tenths": (
        Evidence(
            exit=exit_(137, peak_rss_bytes=180 * MB - 1),
            scontrol={"JobState": "FAILED", "ExitCode": "0:9", "MinMemoryNode": "200M"},
        ),
        "killed",
    ),
    "killed, by the runner's word alone": (Evidence(exit=exit_(7, signal=9)), "killed"),
    "137, by the runner's word alone": (Evidence(exit=exit_(137)), "killed"),
    "words of memory in the log of a job that had plenty": (
        Evidence(
            row=row("FAILED", exit_code=1, max_rss=20 * MB, requested=200 * MB), log="RuntimeError: out of memory"
        ),
        "bug",
    ),
    "at its limit without a word of memory": (
        Evidence(row=row("FAILED", exit_code=1, max_rss=199 * MB, requested=200 * MB), log="ValueError: 43"),
        "bug",
    ),
    "at its limit, with words of memory": (
        Evidence(row=row("FAILED", exit_code=1, max_rss=199 * MB, requested=200 * MB), log="cannot allocate memory"),
        "host_oom",
    ),
    "a shell that passes the signal's number on": (Evidence(row=row("FAILED", exit_code=9)), "killed"),
    "a record of a kind that nobody knows": (Evidence(exit=exit_(1, "phase of the moon")), "unknown"),
    "an error whose kind nobody knows goes by its code": (
        Evidence(error=error("phase of the moon"), row=row("FAILED", exit_code=3)),
        "input",
    ),
    "completed, and accounting has not come": (Evidence(scontrol={"JobState": "COMPLETED"}), None),
    "ended, and nothing at all is known of how": (Evidence(row=row("FAILED")), "unknown"),
    "the stage's own word outweighs a bare FAILED": (
        Evidence(exit=exit_(1, "empty"), error=error("bug"), row=row("FAILED", exit_code=1)),
        "empty",
    ),
    "cancelled after it began, by nobody that accounting knows": (Evidence(row=row("CANCELLED")), "cancelled"),
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
        assert REMEDIES[found.kind].format(resume="r2v resume desk_noisy")


def line_of(evidence: Evidence) -> str:
    failure = classify(evidence)
    assert failure is not None
    return failure.line


def test_a_line_says_what_is_known_and_no_more() -> None:
    assert (
        line_of(Evidence(scontrol={"JobState": "TIMEOUT", "TimeLimit": "00:10:00"})) == "Slurm: TIMEOUT after 00:10:00"
    )
    assert line_of(Evidence(row=row("DEADLINE"))) == "Slurm: DEADLINE"
    assert line_of(Evidence(row=row("NODE_FAIL", nodes="g[1-2]"))) == "Slurm: NODE_FAIL on g[1-2]"
    assert line_of(Evidence(scontrol={"JobState": "NODE_FAIL", "NodeList": "(null)"})) == "Slurm: NODE_FAIL on its node"
    assert line_of(Evidence(scontrol={"JobState": "NODE_FAIL", "NodeList": "g7"})) == "Slurm: NODE_FAIL on g7"
    assert line_of(Evidence(row=row("CANCELLED", by="1000"))) == "cancelled by user 1000"
    assert line_of(Evidence(row=row("CANCELLED"))) == "cancelled"
    assert line_of(Evidence(row=row("OUT_OF_MEMORY"))) == "Slurm: OUT_OF_MEMORY"
    assert line_of(Evidence(row=row("OUT_OF_MEMORY", max_rss=5 * MB))) == "Slurm: OUT_OF_MEMORY: 5 MB used"
    assert line_of(Evidence(row=row("FAILED", signal=11))) == "ended by exit code 0, signal 11"
    assert line_of(Evidence(exit=exit_(7))) == "ended by exit code 7, signal 0"
    assert line_of(Evidence(exit=exit_(3, "input"), log="a\nb is missing\nr2v job failed: job=7")) == "b is missing"
    assert line_of(Evidence(exit=exit_(3, "input", "no such file"), log="a")) == "no such file"
    cuda = "step 1\n  torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB  \nlater"
    assert line_of(Evidence(row=row("FAILED", exit_code=1), log=cuda)) == cuda.splitlines()[1].strip()


def test_an_error_of_ours_needs_no_type_and_no_place() -> None:
    assert error_line(error("input", "no such file")) == "no such file"
    assert error_line(error("bug", "43")) == "ValueError: 43 (r2v/x.py:3)"
    assert error_line({"type": "ValueError", "kind": "bug"}) == "ValueError: ValueError"
    assert error_line({"type": "ValueError", "kind": "usage", "message": ""}) == "ValueError"


@pytest.mark.parametrize(
    ("used", "requested", "near"),
    [(90, 100, True), (89, 100, False), (101, 100, True), (None, 100, False), (90, None, False), (0, 100, False)],
)
def test_nine_tenths_of_what_was_asked_for_is_near_the_limit(
    used: int | None, requested: int | None, near: bool
) -> None:
    assert near_limit(used, requested) is near


def test_a_long_line_is_cut_and_slurms_own_lines_are_the_last_resort() -> None:
    assert last_line("x" * 400) == "x" * 300
    assert last_line("slurmstepd: error: killed\n\n") == "slurmstepd: error: killed"
    assert last_line("first\nsrun: error\nsubmitit WARNING\n") == "first"


def test_the_line_is_the_one_that_tells_it_best() -> None:
    said = (
        "step 1\nTraceback (most recent call last):\nKeyError: 'x'\nslurmstepd: error: JOB 7\nr2v job failed: job=7\n"
    )
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


def test_a_failure_has_a_line_whatever_is_missing() -> None:
    """On a full disk the record could not be written and the log is empty."""
    for code in (1, 3, 5, 11):
        failure = classify(Evidence(scontrol={"JobState": "FAILED", "ExitCode": f"{code}:0"}))
        assert failure is not None and failure.line.startswith(f"ended by exit code {code}")
