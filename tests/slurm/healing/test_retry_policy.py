"""The retry policy, class by class, without any change of a queue."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from r2v.config import load, to_yaml
from r2v.errors import FailureKind
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import Attempt, Chain, ChainJob, HealingLimits, config_sha
from r2v.slurm.client.sacct import SacctRow
from r2v.slurm.healing.classify import REMEDIES, Evidence, Failure
from r2v.slurm.healing.retry_policy import MAX_UNCOUNTED, Resubmit, decide, past_limits
from r2v.storage.files import write_text
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked

RESOURCES = {"partition": "gpu", "mem": "200M", "time": "00:10:00", "gres": "gpu:a100:2"}


def chain_of(
    *reasons: str,
    job: str = "bc",
    resources: dict[str, str] | None = None,
    overrides: tuple[str, ...] = (),
    attempts: int = 3,
    **limits: Any,
) -> Chain:
    """Return a chain with one job that was attempted for these reasons; the classes that do not count are marked."""
    made = tuple(
        Attempt(
            id=str(i),
            reason=reason,
            resources=resources or RESOURCES,
            overrides=overrides,
            counted=reason not in ("preempted", "node_fail"),
        )
        for i, reason in enumerate(reasons)
    )
    return Chain(
        name="x",
        benchmark="desk",
        condition="noisy",
        config_sha="ab",
        limits=HealingLimits(attempts=attempts, **limits),
        jobs={job: ChainJob(needs=(), command=(job,), script="", attempts=made)},
    )


def answer(faked: Faked, chain: Chain, kind: FailureKind, told: Evidence | None = None) -> Resubmit | str:
    faked.answer()
    text = to_yaml(load(None, ["training.bc.batch_size=12"]))
    write_text(chains.folder(faked.root, "x") / "config.yaml", text)
    chain = replace(chain, config_sha=config_sha(text))
    chains.write(faked.root, chain)
    job, failure = next(iter(chain.jobs)), Failure(kind=kind, line="it broke")
    found = decide(faked.root, chain, job, told or Evidence(), failure)
    return isinstance(found, Resubmit) and past_limits(faked.root, chain, job, failure, found) or found


def again(found: Resubmit | str) -> Resubmit:
    assert isinstance(found, Resubmit), found
    return found


@pytest.mark.parametrize(
    ("had", "then"),
    [
        ({"mem": "200M"}, {"mem": "300M"}),
        ({"mem": "64G"}, {"mem": "64G"}),
        ({"mem": "50G"}, {"mem": "64G"}),
        ({"mem": "60000"}, {"mem": "64G"}),
        ({"mem-per-cpu": "4G"}, {"mem-per-cpu": "6G"}),
        ({}, {"mem": "1536M"}),
    ],
)
def test_host_memory_grows_by_half_up_to_the_largest_node(
    had: dict[str, str], then: dict[str, str], faked: Faked
) -> None:
    told = Evidence(row=SacctRow(id="0", state="FAILED", requested=1 << 30))
    found = answer(faked, chain_of("first", resources={"partition": "gpu", **had}), "host_oom", told)
    if had == then:
        assert isinstance(found, str) and "the largest node's 64G" in found
    else:
        assert again(found).resources == {"partition": "gpu", **then} and again(found).counted


def test_memory_grows_up_to_the_limit_of_the_site_and_no_further(faked: Faked) -> None:
    (faked.folder / "partitions.json").write_text(json.dumps({"gpu": {"MaxMemPerNode": "400", "MaxMemPerCPU": "400"}}))
    for key in ("mem", "mem-per-cpu"):
        grown = again(answer(faked, chain_of("first", resources={"partition": "gpu", key: "300M"}), "host_oom"))
        assert grown.resources[key] == "400M"
        found = answer(faked, chain_of("first", resources={"partition": "gpu", key: "400M"}), "host_oom")
        assert isinstance(found, str) and "of partition gpu" in found


def test_time_grows_up_to_the_limit_of_the_site_and_no_further(faked: Faked) -> None:
    (faked.folder / "partitions.json").write_text(json.dumps({"gpu": {"MaxTime": "00:25:00"}}))
    grown = again(answer(faked, chain_of("first", resources={"partition": "gpu", "time": "20"}), "timeout"))
    assert grown.resources["time"] == "25"
    found = answer(faked, chain_of("first", resources={"partition": "gpu", "time": "25"}), "timeout")
    assert found == "no progress in 25 minutes, and it may have no more: MaxTime=00:25:00 of partition gpu"


@pytest.mark.parametrize(
    ("job", "overrides", "then"),
    [
        ("bc", (), ("training.bc.batch_size=6", "training.bc.gradient_accumulation_steps=2")),
        (
            "bc",
            ("training.bc.batch_size=9", "seed=3"),
            ("seed=3", "training.bc.batch_size=3", "training.bc.gradient_accumulation_steps=3"),
        ),
        (
            "bc",
            ("training.bc.batch_size=5",),
            ("training.bc.batch_size=1", "training.bc.gradient_accumulation_steps=5"),
        ),
        ("hierarchical", (), ("hierarchical.gradient_checkpointing=true", "rollout.batch_size=32")),
        (
            "hierarchical",
            ("hierarchical.gradient_checkpointing=true", "rollout.batch_size=1"),
            ("hierarchical.gradient_checkpointing=true", "rollout.batch_size=1", "hierarchical.micro_batch=1"),
        ),
        ("evaluate", (), ("rollout.batch_size=32",)),
        ("router", (), ("rollout.batch_size=32",)),
    ],
)
def test_cuda_memory_means_smaller_batches_at_an_equal_product(
    job: str, overrides: tuple[str, ...], then: tuple[str, ...], faked: Faked
) -> None:
    found = again(answer(faked, chain_of("first", job=job, overrides=overrides), "cuda_oom"))
    assert found.overrides == then and found.resources == RESOURCES


@pytest.mark.parametrize(
    ("job", "overrides"),
    [
        ("bc", ("training.bc.batch_size=1",)),
        ("evaluate", ("rollout.batch_size=1",)),
        (
            "hierarchical",
            ("hierarchical.micro_batch=1", "rollout.batch_size=1", "hierarchical.gradient_checkpointing=true"),
        ),
    ],
)
def test_a_batch_of_one_row_cannot_be_split(job: str, overrides: tuple[str, ...], faked: Faked) -> None:
    found = answer(faked, chain_of("first", job=job, overrides=overrides), "cuda_oom")
    assert isinstance(found, str) and "one row" in found


def test_a_time_limit_with_progress_is_no_attempt_and_without_it_means_more_time(faked: Faked) -> None:
    chain = chain_of("first", "timeout")
    faked.record("0", name="x", start={"restart": 0}, events=[{"restart": 0, "what": "bc", "done": 40}])
    faked.record("1", name="x", start={"restart": 0}, events=[{"restart": 0, "what": "bc", "done": 41}])
    further = again(answer(faked, chain, "timeout"))
    assert further.resources == RESOURCES and not further.counted
    faked.record("1", name="x", start={"restart": 0}, events=[{"restart": 0, "what": "bc", "done": 40}])
    stuck = again(answer(faked, chain, "timeout"))
    assert stuck.resources["time"] == "15" and stuck.counted


def test_a_timeout_without_a_time_in_the_header_counts(faked: Faked) -> None:
    """Otherwise the job would be tried ten times."""
    found = again(answer(faked, chain_of("first", resources={"partition": "gpu", "mem": "200M"}), "timeout"))
    assert found.counted and found.resources == {"partition": "gpu", "mem": "200M"} and found.why == "as before"
    short = again(answer(faked, chain_of("first", resources={"time": "1"}), "interrupted"))
    assert short.resources == {"time": "2"} and "time 2 minutes" in short.why


def test_memory_that_nobody_knows_is_not_made_more(faked: Faked) -> None:
    for resources, shown in (({"partition": "gpu"}, "--mem="), ({"mem": "0"}, "--mem=0")):
        found = answer(faked, chain_of("first", resources=resources), "host_oom")
        assert isinstance(found, str) and "it had all the memory of its node" in found and shown in found


def test_more_memory_is_said_with_what_there_was(faked: Faked) -> None:
    assert again(answer(faked, chain_of("first"), "host_oom")).why == "mem 200M -> 300M"
    more = again(answer(faked, chain_of("first", resources={"mem-per-gpu": "2G", "partition": "gpu"}), "host_oom"))
    assert more.resources == {"mem-per-gpu": "3G", "partition": "gpu"} and more.why == "mem-per-gpu 2G -> 3G"


def test_the_latest_attempt_is_what_is_changed(faked: Faked) -> None:
    chain = chain_of("first", "killed")
    first, latest = chain.jobs["bc"].attempts
    chain = chain.with_job("bc", attempts=(first, replace(latest, resources={"mem": "300M"}, overrides=("seed=3",))))
    found = again(answer(faked, chain, "host_oom"))
    assert found.resources == {"mem": "450M"} and found.overrides == ("seed=3",)


def test_an_attempt_that_counts_for_nothing_is_no_answer_to_a_failure(faked: Faked) -> None:
    """Nine preemptions, then an out-of-memory error: that is the first of three attempts."""
    again(answer(faked, chain_of("first", *["preempted"] * (MAX_UNCOUNTED - 1)), "preempted"))
    again(answer(faked, chain_of("first", *["preempted"] * MAX_UNCOUNTED), "host_oom"))
    again(answer(faked, chain_of("first", "cuda_oom", attempts=9), "cuda_oom"))
    again(answer(faked, chain_of("first", "host_oom", attempts=3), "host_oom"))


def test_a_node_without_a_name_is_not_left_out(faked: Faked) -> None:
    found = again(answer(faked, chain_of("first"), "node_fail"))
    assert found.resources == RESOURCES and found.why == "as before" and not found.counted
    named = Evidence(row=SacctRow(id="0", state="NODE_FAIL", nodes="g2"))
    found = again(answer(faked, chain_of("first"), "node_fail", named))
    assert found.resources["exclude"] == "g2" and found.why == "not on g2"


def test_a_bad_node_is_left_out_and_a_preemption_counts_for_nothing(faked: Faked) -> None:
    told = Evidence(row=SacctRow(id="0", state="NODE_FAIL", nodes="g2"))
    found = again(answer(faked, chain_of("first", resources={**RESOURCES, "exclude": "g1"}), "node_fail", told))
    assert found.resources["exclude"] == "g1,g2" and not found.counted
    found = again(answer(faked, chain_of("first"), "preempted"))
    assert found.resources == RESOURCES and not found.counted


@pytest.mark.parametrize("kind", ["killed", "lease_conflict", "no_log"])
def test_what_may_pass_by_itself_is_tried_again_as_it_was(kind: FailureKind, faked: Faked) -> None:
    found = again(answer(faked, chain_of("first"), kind))
    assert found.resources == RESOURCES and found.counted


RETRIED = {
    "host_oom",
    "cuda_oom",
    "timeout",
    "interrupted",
    "preempted",
    "node_fail",
    "killed",
    "lease_conflict",
    "machine",
    "installation",
    "file_system",
    "stalled",
    "no_log",
}


@pytest.mark.parametrize("kind", sorted(set(REMEDIES) - RETRIED))
def test_what_needs_a_person_is_not_tried_again(kind: FailureKind, faked: Faked) -> None:
    why = {"cancelled": "it was cancelled", "dependency": "it comes back with the job that it waits for"}
    other = f"trying again does not mend a failure of kind {kind}"
    assert answer(faked, chain_of("first"), kind) == why.get(kind, other)


@pytest.mark.parametrize(
    ("chain", "kind", "why"),
    [
        (chain_of("first", "host_oom", "host_oom"), "host_oom", "3 attempts of the 3"),
        (chain_of("first", attempts=1), "host_oom", "1 attempts of the 1"),
        (chain_of("first", "cuda_oom", "cuda_oom", attempts=9), "cuda_oom", "cuda_oom has been answered 2 times"),
        (chain_of("first", *["host_oom"] * 3, attempts=9), "host_oom", "host_oom has been answered 3 times"),
        (chain_of("first", *["preempted"] * MAX_UNCOUNTED), "preempted", "without an end in sight"),
    ],
)
def test_healing_has_an_end(chain: Chain, kind: FailureKind, why: str, faked: Faked) -> None:
    found = answer(faked, chain, kind)
    assert isinstance(found, str) and why in found


def test_asking_again_gives_new_attempts(faked: Faked) -> None:
    for asked in ("rerun", "resume"):
        again(answer(faked, chain_of("first", "host_oom", "host_oom", asked), "host_oom"))


def test_the_cap_on_gpu_hours_is_the_chains(faked: Faked) -> None:
    faked.accounted("0", "FAILED", ElapsedRaw=3600, AllocTRES="gres/gpu=2,node=1")
    assert "2.00 GPU-hours of the 1.5" in str(answer(faked, chain_of("first", gpu_hours=1.5), "host_oom"))
    again(answer(faked, chain_of("first", gpu_hours=2.5), "host_oom"))
    faked.down("sacct", "sacct: error: Connection refused")
    faked.record(
        "0", name="x", start={"gpus": 2, "at": "2026-01-01T00:00:00+00:00"}, exit={"at": "2026-01-01T01:00:00+00:00"}
    )
    assert "2.00 GPU-hours" in str(answer(faked, chain_of("first", gpu_hours=1.5), "host_oom"))


@pytest.mark.parametrize(
    ("seconds", "ended", "over"), [(None, True, True), (0, True, True), (0, False, False), (3600, False, True)]
)
def test_accounting_may_come_late_or_count_whole_seconds(
    seconds: int | None, ended: bool, over: bool, faked: Faked
) -> None:
    """The job's own records count too; the time since the last record of a job that died silently does not."""
    if seconds is not None:
        faked.accounted("0", "FAILED", ElapsedRaw=seconds, AllocTRES="gres/gpu=2,node=1")
    faked.record(
        "0",
        name="x",
        start={"gpus": 2, "at": "2026-01-01T00:00:00+00:00"},
        **({"exit": {"at": "2026-01-01T00:30:00+00:00"}} if ended else {}),
    )
    found = answer(faked, chain_of("first", gpu_hours=0.5), "host_oom")
    assert ("GPU-hours of the 0.5" in str(found)) == over


def test_a_changed_split_of_the_batch_leaves_the_identity(faked: Faked) -> None:
    """The attempt therefore resumes from the checkpoint of the one before."""
    from r2v.config import identity

    found = again(answer(faked, chain_of("first"), "cuda_oom"))
    path = chains.folder(faked.root, "x") / "config.yaml"
    assert identity(load(path, found.overrides).training) == identity(load(path).training)
