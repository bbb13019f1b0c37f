"""Bad nodes are avoided for three days by every chain; learned sizes hold until the header is edited."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from r2v.errors import MACHINE_FAULT, failure_of
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import experience
from r2v.slurm.chain.chain import Attempt, Chain, ChainJob
from r2v.slurm.chain.experience import excluded, learn, remember, sized, without_bad
from r2v.slurm.client.sacct import SacctRow
from r2v.slurm.healing.classify import Evidence, Failure, classify
from r2v.slurm.healing.retry_policy import Resubmit, decide, past_limits


def test_a_bad_node_is_excluded_beside_those_of_the_header_until_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert without_bad(tmp_path, {"mem": "1G"}) == {"mem": "1G"}
    remember(tmp_path, "g1", "uncorrectable ECC error")
    remember(tmp_path, "g7", "Xid 79")
    assert excluded(tmp_path) == ["g1", "g7"]
    assert without_bad(tmp_path, {"exclude": "g7,g9"})["exclude"] == "g7,g9,g1"
    path = tmp_path / experience.BAD_NODES
    path.write_text(json.dumps({"nodes": {"g7": json.loads(path.read_text())["nodes"]["g7"], "g8": None}}))
    assert excluded(tmp_path) == ["g7"], "a person had g1 repaired"
    monkeypatch.setattr(experience, "FORGOTTEN_AFTER", timedelta(seconds=-1))
    assert excluded(tmp_path) == []


def test_a_learned_size_holds_until_the_header_is_edited(tmp_path: Path) -> None:
    had = {"mem": "200M", "time": "00:10:00"}
    learn(tmp_path, "x", "bc", had, {**had, "mem": "300M"})
    learn(tmp_path, "x", "bc", {**had, "mem": "300M"}, {**had, "mem": "450M"})
    learn(tmp_path, "x", "bc", {**had, "mem": "450M"}, {"mem": "450M", "time": "15"})
    assert sized(tmp_path, "x", "bc", had) == {"mem": "450M", "time": "15"}
    assert sized(tmp_path, "x", "bc", {**had, "mem": "250M"}) == {"mem": "250M", "time": "15"}
    assert sized(tmp_path, "x", "router", had) == had
    learn(tmp_path, "x", "router", {"time": "10"}, {"time": "10", "mem": "300M"})
    assert sized(tmp_path, "x", "router", {"time": "10"}) == {"time": "10", "mem": "300M"}
    assert sized(tmp_path, "x", "router", {"time": "10", "mem": "1G"}) == {"time": "10", "mem": "1G"}


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1234, OpType=ALLREDUCE)",
        "NCCL error in: NCCLUtils.hpp:121, unhandled error\nncclSystemError: System call failed.",
        "RuntimeError: Found no NVIDIA driver on your system.",
        "Failed to initialize NVML: Driver/library version mismatch",
    ],
)
def test_faults_of_machines_are_no_bugs(line: str) -> None:
    assert failure_of(RuntimeError(line)) == ("machine", 1)
    killed = {"rc": 134, "kind": "killed", "line": "rank 1 crashed (SIGABRT)"}
    assert classify(Evidence(exit=killed, log=f"step 4\n{line}\n")).kind == "machine"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: device-side assert triggered",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    ],
)
def test_what_a_program_brings_about_itself_is_a_bug(line: str) -> None:
    assert failure_of(RuntimeError(line))[0] == "bug" and not MACHINE_FAULT.search(line)


@pytest.mark.parametrize(
    ("code", "log"),
    [
        (
            127,
            "job: line 9: exec: .venv/bin/python: not found\n.venv/bin/python: No such file or directory",
        ),
        (1, "/usr/bin/python: Error while finding module\nModuleNotFoundError: No module named 'r2v'"),
        (1, "Lmod has detected the following error: The following module(s) are unknown: cuda/12.1"),
    ],
)
def test_software_that_a_node_lacks_is_tried_once_elsewhere(code: int, log: str, tmp_path: Path) -> None:
    told = Evidence(row=SacctRow(id="1", state="FAILED", exit_code=code, nodes="g1"), log=log)
    failure = classify(told)
    assert failure is not None and failure.kind == "installation"
    first = decide(tmp_path, _chain("first"), "bc", told, failure)
    assert isinstance(first, Resubmit) and first.resources["exclude"] == "g1" and first.counted
    again = decide(tmp_path, second := _chain("first", "installation"), "bc", told, failure)
    assert isinstance(again, Resubmit) and "answered 1 times" in past_limits(tmp_path, second, "bc", failure, again)


def test_a_fault_of_a_machine_is_answered_elsewhere_three_times(tmp_path: Path) -> None:
    told = Evidence(row=SacctRow(id="1", state="FAILED", nodes="g1"))
    broken = Failure(kind="machine", line="Xid 79")
    found = decide(tmp_path, _chain("first"), "bc", told, broken)
    assert isinstance(found, Resubmit) and found.resources["exclude"] == "g1" and not found.counted
    assert "answered 3 times" in past_limits(tmp_path, _chain("first", *["machine"] * 3), "bc", broken, found)


def _chain(*reasons: str) -> Chain:
    attempts = tuple(Attempt(id=str(at), reason=reason, resources={"mem": "1G"}) for at, reason in enumerate(reasons))
    jobs = {"bc": ChainJob(needs=(), command=("bc",), script="", attempts=attempts)}
    return chains.Chain(name="x", benchmark="desk", condition="noisy", config_sha="ab", jobs=jobs)
