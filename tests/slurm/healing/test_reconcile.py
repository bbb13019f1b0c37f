"""Reconciliation, with its own code on a simulated Slurm: random chains under faults, and each fault by itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import get_args

import pytest

from benchmarks.slurm_chaos import MEASURES, play
from r2v.errors import FailureKind
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import WHOLE, Attempt, Chain, ChainJob, config_sha
from r2v.slurm.chain.experience import excluded
from r2v.slurm.client.command import through
from r2v.slurm.healing.heal import DOUBTFUL
from r2v.slurm.healing.reconcile import by_sentinel, from_job, reconcile, surplus
from r2v.slurm.site.site_profile import SiteProfile
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed
from tests.slurm.simulator import FAULTS, Killed, SimulatedSlurm

NAME = "desk_noisy"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedSlurm]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("R2V_SLURM_PATIENCE", "30")
    cluster = SimulatedSlurm(folder=str(tmp_path))
    with through(cluster):
        yield cluster


def submitted(root: Path = Path(), resources: Mapping[str, str] = MappingProxyType({"mem": "1G"})) -> Chain:
    """Submit three stages in a row."""
    planned = Attempt(id="", resources=dict(resources), reason="first")
    jobs = {
        name: ChainJob(needs=needs, command=("stamp",), script="", planned=planned)
        for name, needs in (("a", ()), ("b", ("a",)), ("c", ("b",)))
    }
    sha = config_sha("seed: 0\n")
    asked = SiteProfile().sentinel_directives({})
    chains.write(root, Chain(name=NAME, benchmark="desk", condition="noisy", config_sha=sha, sentinel=asked, jobs=jobs))
    (chains.folder(root, NAME) / "config.yaml").write_text("seed: 0\n")
    reconcile(NAME)
    return chains.read(root, NAME)


def started(id_: str) -> None:
    """Write a job's own record of its start, on a node with GPUs."""
    place = {"nodes": "g1", "partition": "gpu", "mem_bytes": 1 << 30}
    record = {"job": "a", "restart": 0, "at": chains.now(), "gpus": 1, "resources": place}
    write_json(job_record.record_folder(Path(), NAME, id_) / "start.json", hashed(record))


def failed(slurm: SimulatedSlurm, id_: str, kind: str = "host_oom", code: int = 137) -> None:
    """End a job as failed and write its own record of that."""
    record = {"rc": code, "signal": 0, "kind": kind, "line": kind, "at": chains.now(), "restart": 0}
    write_json(job_record.record_folder(Path(), NAME, id_) / "exit.json", hashed(record))


def test_random_chains_under_faults_leave_nothing_wrong(tmp_path: Path) -> None:
    injected = set()
    for seed in range(1000, 1012):
        wrong, _, faults, _ = play(tmp_path / str(seed), seed, 0.2)
        assert {name: wrong[name] for name in MEASURES} == dict.fromkeys(MEASURES, 0), f"seed {seed}"
        injected |= {kind for _, kind in faults.injected}
    assert injected == set(FAULTS)


def test_a_second_look_changes_nothing(slurm: SimulatedSlurm) -> None:
    before = submitted()
    calls, queue = slurm.faults.calls, [vars(job).copy() for job in slurm.jobs.values()]
    assert reconcile(NAME) == []
    assert chains.read(Path(), NAME) == before and [vars(job) for job in slurm.jobs.values()] == queue
    assert slurm.faults.calls == calls + 1, "one squeue"


def test_the_dying_job_heals_itself_and_those_behind_keep_their_ids(slurm: SimulatedSlurm) -> None:
    made = submitted()
    first = {name: job.latest.id for name, job in made.jobs.items() if job.latest}
    failed(slurm, first["a"])
    from_job(Path(), NAME, first["a"], failed=True)
    now = chains.read(Path(), NAME)
    latest = now.jobs["a"].latest
    assert slurm.jobs[first["a"]].state == "RUNNING", "it is not gone yet"
    assert latest is not None and latest.resources["mem"] == "1536M" and latest.reason == "host_oom"
    assert slurm.jobs[first["b"]].dependency == f"afterok:{latest.id}"
    assert [now.jobs[name].latest.id for name in "bc"] == [first["b"], first["c"]]  # type: ignore[union-attr]
    slurm.finish(slurm.jobs[first["a"]], "FAILED", "137:0")
    assert reconcile(NAME) == [] and chains.read(Path(), NAME) == now


TOLD: dict[FailureKind, tuple[int, str]] = {
    "usage": (2, "FAILED"),
    "input": (3, "FAILED"),
    "empty": (4, "FAILED"),
    "environment": (5, "FAILED"),
    "lease_conflict": (6, "FAILED"),
    "interrupted": (75, "FAILED"),
    "bug": (1, "FAILED"),
    "cuda_oom": (1, "FAILED"),
    "host_oom": (137, "OUT_OF_MEMORY"),
    "machine": (1, "FAILED"),
    "file_system": (5, "FAILED"),
    "installation": (1, "FAILED"),
    "stalled": (1, "FAILED"),
    "killed": (137, "FAILED"),
}
"""Kinds of failure that a dying job can report, with its exit code and Slurm's state; the other kinds come from Slurm
alone."""


def decided(root: Path, chain: Chain) -> tuple[object, ...]:
    """Return the decisions of healing about a chain's first job, and the nodes that are avoided from now on."""
    job = chain.jobs["a"]
    first, *later = job.attempts
    follows = (*later, *([job.planned] if job.planned else []))
    successor = [(one.reason, one.resources, one.overrides, one.counted) for one in follows]
    return successor, first.failure and (first.failure.kind, first.failure.action), excluded(root)


@pytest.mark.parametrize(("resources", "silent"), [({"mem": "1G"}, ""), ({}, "squeue")], ids=["answers", "silent"])
@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_the_dying_job_and_its_sentinel_decide_the_same(
    kind: FailureKind,
    resources: dict[str, str],
    silent: str,
    slurm: SimulatedSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a GPU fault was retried on the same node if the dying job, which knows nothing from Slurm, healed
    alone."""
    if kind not in TOLD:
        assert {kind} <= {"timeout", "preempted", "node_fail", "cancelled", "dependency", "no_log", "unknown"}
        return
    (code, state), outcomes = TOLD[kind], []
    for path in ("dying job", "sentinel"):
        monkeypatch.setenv("R2V_SLURM_PATIENCE", "0")
        (folder := tmp_path / path).mkdir()
        monkeypatch.chdir(folder)
        slurm.folder = str(folder)
        first = submitted(resources=resources).jobs["a"].latest
        assert first is not None
        started(first.id)
        failed(slurm, first.id, kind, code)
        if path == "dying job":
            slurm.faults.silent = silent
            from_job(Path(), NAME, first.id, failed=True)
            slurm.faults.silent = ""
            early = decided(folder, chains.read(folder, NAME))
            assert kind in DOUBTFUL or early[1] is not None, "it waits for nobody"
        slurm.finish(slurm.jobs[first.id], state, f"{code}:0")
        assert by_sentinel(NAME, WHOLE) == 0
        outcomes.append(decided(folder, chains.read(folder, NAME)))
        assert path == "sentinel" or kind in DOUBTFUL or outcomes[0] == early
    assert outcomes[0] == outcomes[1]
    successor, failure, avoided = outcomes[0]
    assert avoided == (["g1"] if kind == "machine" else [])
    if kind in ("machine", "installation", "file_system"):
        assert successor[0][1]["exclude"] == "g1"  # type: ignore[index]
    if kind == "host_oom":
        assert successor[0][1]["mem"] == "1536M"  # type: ignore[index]


def test_an_update_that_was_refused_once_is_made_by_the_next_look(
    slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the child waited for ever for a failed attempt, and status said that it would start soon."""
    monkeypatch.setenv("R2V_SLURM_PATIENCE", "0")
    first = submitted().jobs
    failed(slurm, first["a"].latest.id)  # type: ignore[union-attr]
    slurm.faults.silent = "scontrol"
    from_job(Path(), NAME, first["a"].latest.id, failed=True)  # type: ignore[union-attr]
    slurm.finish(slurm.jobs[first["a"].latest.id], "FAILED", "137:0")  # type: ignore[union-attr]
    child = slurm.jobs[first["b"].latest.id]  # type: ignore[union-attr]
    assert child.reason == "DependencyNeverSatisfied"
    slurm.faults.silent = ""
    assert reconcile(NAME) == [] and child.reason == "Dependency"


def test_what_was_refused_stays_planned_and_is_submitted_by_whoever_comes_next(
    slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: one refused sbatch in a sentinel ended healing for good, or lost the attempt that had been
    submitted."""
    first = submitted().jobs
    failed(slurm, first["a"].latest.id)  # type: ignore[union-attr]
    for fault in ("full", "lost", "error"):
        monkeypatch.setenv("R2V_SLURM_PATIENCE", "0")
        slurm.faults.listed = {slurm.faults.calls + at: fault for at in range(1, 9)}
        from_job(Path(), NAME, first["a"].latest.id, failed=True)  # type: ignore[union-attr]
        planned = chains.read(Path(), NAME).jobs["a"].planned
        assert planned is not None and planned.resources["mem"] == "1536M"
    slurm.faults.listed = {}
    slurm.finish(slurm.jobs[first["a"].latest.id], "FAILED", "137:0")  # type: ignore[union-attr]
    assert reconcile(NAME) == []
    attempts = chains.read(Path(), NAME).jobs["a"].attempts
    assert [one.reason for one in attempts] == ["first", "host_oom"] and attempts[1].sentinel in slurm.jobs


def test_a_submission_delivered_twice_is_ended_and_one_that_starts_does_nothing(slurm: SimulatedSlurm) -> None:
    planned = submitted().jobs["c"].latest
    assert planned is not None
    row = slurm.jobs[planned.id]
    slurm.jobs["90"] = replace(row, id="90", dependency="")
    assert surplus(Path(), NAME, "c", 1, "90") and not surplus(Path(), NAME, "c", 1, planned.id)
    slurm.jobs["91"] = replace(row, id="91")
    assert reconcile(NAME) == [] and slurm.jobs["91"].state == "CANCELLED"
    assert row.state == "PENDING"


def test_an_attempt_that_slurm_submits_late_is_not_taken_for_the_next_one(
    slurm: SimulatedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submitted().jobs["a"].latest
    assert first is not None
    failed(slurm, first.id)
    monkeypatch.setenv("R2V_SLURM_PATIENCE", "0")
    slurm.faults.listed = {slurm.faults.calls + at: "full" for at in range(1, 9)}
    from_job(Path(), NAME, first.id, failed=True)
    slurm.faults.listed = {}
    assert chains.read(Path(), NAME).jobs["a"].planned is not None
    slurm.jobs["90"] = replace(slurm.jobs[first.id], id="90", state="PENDING", dependency="")
    assert surplus(Path(), NAME, "a", 1, "90")
    slurm.finish(slurm.jobs[first.id], "FAILED", "137:0")
    assert reconcile(NAME) == [] and slurm.jobs["90"].state == "CANCELLED"
    second = chains.read(Path(), NAME).jobs["a"].latest
    assert second is not None and slurm.jobs[second.id].options["comment"].endswith(".2")
    assert slurm.jobs[second.id].options["mem"] == "1536M"


def test_whoever_is_killed_at_any_call_leaves_what_the_next_goes_on_with(slurm: SimulatedSlurm) -> None:
    first = submitted().jobs
    failed(slurm, first["a"].latest.id)  # type: ignore[union-attr]
    for at in range(1, 6):
        slurm.faults.listed = {slurm.faults.calls + at: "killed"}
        try:
            from_job(Path(), NAME, first["a"].latest.id, failed=True)  # type: ignore[union-attr]
        except Killed:
            continue
    slurm.faults.listed = {}
    slurm.finish(slurm.jobs[first["a"].latest.id], "FAILED", "137:0")  # type: ignore[union-attr]
    assert reconcile(NAME) == []
    alive = [job.options["comment"] for job in slurm.jobs.values() if job.state in ("PENDING", "RUNNING")]
    sha = config_sha("seed: 0\n")
    assert sorted(alive) == sorted(
        [
            chains.comment(NAME, "a", sha, attempt=2),
            *(chains.comment(NAME, name, sha) for name in "bc"),
            chains.comment(NAME, WHOLE, sha, sentinel=True),
        ]
    )


def test_a_sentinel_that_is_killed_is_started_again_by_its_script(slurm: SimulatedSlurm, tmp_path: Path) -> None:
    sentinel = slurm.jobs[str(submitted().jobs["a"].latest.sentinel)]  # type: ignore[union-attr]
    stub = tmp_path / "python"
    for ends, code in ((["kill -9 $$", "exit 4"], 4), (["kill -9 $$"] * 3, 137), (["exit 0"], 0)):
        stub.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/begun\ncase $(wc -l < {tmp_path}/begun) in\n')
        stub.write_text(stub.read_text() + "".join(f"  {at}) {end};;\n" for at, end in enumerate(ends, 1)) + "esac\n")
        stub.chmod(0o755)
        done = subprocess.run(["bash"], input=sentinel.options["script"].replace(sys.executable, str(stub)), text=True)
        assert done.returncode == code
        assert (tmp_path / "begun").read_text().splitlines() == [f"-m r2v heal {NAME} {WHOLE}"] * len(ends)
        (tmp_path / "begun").unlink()


def sentinels(slurm: SimulatedSlurm) -> list[str]:
    """Return the dependency of each sentinel in the queue."""
    found = [job for job in slurm.jobs.values() if "~heal/" in job.options["comment"]]
    return [job.dependency for job in found if job.state in ("PENDING", "RUNNING")]


def test_a_chain_counts_one_job_more_than_its_stages_against_a_limit(slurm: SimulatedSlurm) -> None:
    ids = [entry.latest.id for entry in submitted().jobs.values() if entry.latest]
    assert sentinels(slurm) == ["?".join(f"afternotok:{id_}" for id_ in ids)] and len(slurm.jobs) == len(ids) + 1
    slurm.finish(slurm.jobs[ids[0]], "COMPLETED")
    assert reconcile(NAME) == [] and len(sentinels(slurm)) == 1, "one that is done is watched no more"


def test_the_sentinel_watches_a_dying_job_to_its_end_and_then_what_was_made_of_it(slurm: SimulatedSlurm) -> None:
    """A job that does not heal itself (a kill has many causes) is healed by its sentinel."""
    first = {name: job.latest.id for name, job in submitted().jobs.items() if job.latest}
    failed(slurm, first["a"], "killed")
    from_job(Path(), NAME, first["a"], failed=True)
    assert sentinels(slurm) == ["?".join(f"afternotok:{id_}" for id_ in first.values())]
    slurm.finish(slurm.jobs[first["a"]], "FAILED", "137:0")
    (sentinel,) = [job for job in slurm.begun if "~heal/" in job.options["comment"]]
    assert by_sentinel(NAME) == 0
    slurm.finish(sentinel, "COMPLETED")
    again = chains.read(Path(), NAME).jobs["a"].latest
    assert again is not None and again.reason == "killed"
    assert sentinels(slurm) == ["?".join(f"afternotok:{id_}" for id_ in (again.id, first["b"], first["c"]))]


def test_a_look_before_accounting_knows_leaves_the_sentinel_of_a_failure(slurm: SimulatedSlurm) -> None:
    """Regression: another process, which looked in the second of the failure, removed the sentinel as one without a
    job, and the job was never healed."""
    slurm.settle = 5.0
    first = [job.latest.id for job in submitted().jobs.values() if job.latest]
    for id_ in first[:2]:
        slurm.finish(slurm.jobs[id_], "COMPLETED")
        slurm.sleep(10.0)
    failed(slurm, first[2], "bug")
    slurm.finish(slurm.jobs[first[2]], "FAILED", "1:0")
    from_job(Path(), NAME, "99")  # a job submitted by hand, that starts
    assert chains.read(Path(), NAME).jobs["c"].latest.failure is None  # type: ignore[union-attr]
    slurm.sleep(10.0)
    (sentinel,) = [job for job in slurm.begun if "~heal/" in job.options["comment"]]
    assert by_sentinel(NAME) == 0
    assert chains.read(Path(), NAME).jobs["c"].latest.failure.kind == "bug"  # type: ignore[union-attr]
    slurm.finish(sentinel, "COMPLETED")
    assert reconcile(NAME) == [] and sentinels(slurm) == []


def test_where_a_site_forbids_the_flag_a_sentinel_starts_in_any_case(slurm: SimulatedSlurm) -> None:
    made = submitted()
    chains.write(Path(), replace(made, sentinel=SiteProfile(kill_on_invalid_dep=False).sentinel_directives({})))
    slurm.run(["scancel", str(made.jobs["a"].latest.sentinel)], "", {})  # type: ignore[union-attr]
    reconcile(NAME)
    sentinel = slurm.jobs[str(chains.read(Path(), NAME).jobs["a"].latest.sentinel)]  # type: ignore[union-attr]
    ids = [made.jobs[name].latest.id for name in "abc"]  # type: ignore[union-attr]
    assert sentinel.dependency == "?".join(f"afterany:{id_}" for id_ in ids)
    assert "kill-on-invalid-dep" not in sentinel.options
