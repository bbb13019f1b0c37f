"""The retry policy: the answer to a failure, by its kind. It decides only; r2v.slurm.healing.heal acts.

    host_oom            half as much memory again, up to the site's limit; three times
    cuda_oom            micro-batches of the largest proper part of their size, the product as it was, so that the
                        artifact and its checkpoint stay the same; for rollouts, rollout.batch_size; for hierarchical
                        training, which halves its rows by itself, gradient checkpointing; twice
    timeout,            again; without progress with half as much time again, up to the site's limit
    interrupted
    preempted           again, not counted
    node_fail           again, not counted, without that node
    machine             again, not counted, without that node, which is recorded as bad; three times
    installation,       again, without that node; once
    file_system
    killed, stalled,    again
    lease_conflict
    no_log              again, once; the folder of the logs is made anew
    everything else     none: a person acts, and dependent jobs keep their places in the queue

Attempts are counted since a person last asked for one (run_all, resume), up to `limits.attempts` (`HealingLimits` in
r2v.slurm.chain.chain).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from r2v.config import PHASES, Config, HierarchicalConfig, load
from r2v.errors import R2VError
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import Chain, require_configuration
from r2v.slurm.client import client
from r2v.slurm.client.limits import Ceiling, limits
from r2v.slurm.client.sacct import memory
from r2v.slurm.healing.classify import Evidence, Failure
from r2v.slurm.healing.gpu_hours import over_cap
from r2v.slurm.site.headers import Resources

MAX_BY_KIND = {"host_oom": 3, "cuda_oom": 2, "machine": 3, "installation": 1, "file_system": 1, "no_log": 1}
"""Maximum number of answers by kind."""
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
"""Directives for memory."""
NO_MORE = "it may have no more"
"""Text of an answer that met a limit of the site on memory or time; `r2v explain` looks for it."""
MAX_UNCOUNTED = 10
"""Uncounted attempts (preempted, timed out with progress) after which a person should look."""


@dataclass(frozen=True, kw_only=True)
class Resubmit:
    """The decision to submit again, with these resources and overrides. `why` names the change."""

    resources: dict[str, str]
    overrides: tuple[str, ...]
    counted: bool
    why: str


def past_limits(root: Path, chain: Chain, job: str, failure: Failure, decision: Resubmit) -> str:
    """Return the limit that forbids the decision; "" for none."""
    attempts = chain.jobs[job].since_asked
    counted = sum(attempt.counted for attempt in attempts)
    if decision.counted and counted >= chain.limits.attempts:
        return f"{counted} attempts of the {chain.limits.attempts} that it may have"
    if not decision.counted and len(attempts) - counted >= MAX_UNCOUNTED:
        return f"{MAX_UNCOUNTED} times again without an end in sight"
    answered = sum(attempt.reason == failure.kind for attempt in attempts)
    if answered >= MAX_BY_KIND.get(failure.kind, answered + 1):
        return f"{failure.kind} has been answered {answered} times"
    return over_cap(root, chain.name) or ""


def decide(root: Path, chain: Chain, job: str, evidence: Evidence, failure: Failure) -> Resubmit | str:
    """Return the answer to the failure of a job's latest attempt, before limits; a string is the reason for none."""
    latest = chain.jobs[job].attempts[-1]
    same = Resubmit(resources=latest.resources, overrides=latest.overrides, counted=True, why="as before")
    if failure.kind == "host_oom":
        return _more_memory(same, evidence)
    if failure.kind == "cuda_oom":
        return _smaller_batches(root, chain, job, same)
    if failure.kind in ("timeout", "interrupted"):
        return _more_time(root, chain, job, latest.id, same, evidence.partition)
    if failure.kind == "preempted":
        return replace(same, counted=False)
    if failure.kind in ("node_fail", "machine", "installation", "file_system"):
        return _elsewhere(same, evidence.nodes, counted=failure.kind in ("installation", "file_system"))
    if failure.kind in ("killed", "stalled", "lease_conflict", "no_log"):  # each submission makes the folder of logs
        return same
    if failure.kind == "cancelled":
        return "it was cancelled"
    if failure.kind == "dependency":
        return "it comes back with the job that it waits for"
    return f"trying again does not mend a failure of kind {failure.kind}"


def _elsewhere(same: Resubmit, bad: str, *, counted: bool) -> Resubmit:
    if not bad:
        return replace(same, counted=counted)
    excluded = ",".join(word for word in (same.resources.get("exclude", ""), bad) if word)
    return replace(same, resources={**same.resources, "exclude": excluded}, counted=counted, why=f"not on {bad}")


def _more_memory(same: Resubmit, evidence: Evidence) -> Resubmit | str:
    """Raise the header's memory directive, or else the granted memory, by half."""
    resources = dict(same.resources)
    key = next((name for name in MEMORY if name in resources), MEMORY[0])
    had = memory(resources.get(key, "")) or evidence.measured[1]
    if not had:
        return f"it had all the memory of its node (--{key}={resources.get(key, '')}), or Slurm does not say how much"
    raised = by_half(had)
    ceiling = limits(resources, evidence.partition).get(key)
    largest = _largest_node(resources, evidence) if key == "mem" else None
    if largest is not None and (ceiling is None or largest.value < ceiling.value):
        ceiling = largest
    if ceiling is not None and raised > ceiling.value:
        if had >= ceiling.value:
            return f"it had {megabytes(had)}, and {NO_MORE}: {ceiling.rule}"
        raised = ceiling.value
    resources[key] = megabytes(raised)
    return replace(same, resources=resources, why=f"{key} {megabytes(had)} -> {resources[key]}")


def _largest_node(resources: dict[str, str], evidence: Evidence) -> Ceiling | None:
    names = (resources.get("partition") or evidence.partition).split(",")
    try:
        sizes = [part.memory << 20 for part in client.partitions() if part.name in names and part.memory]
    except R2VError:  # without sinfo Slurm itself refuses a job that no node holds
        return None
    size = max(sizes, default=0)
    return Ceiling(value=size, rule=f"the largest node's {megabytes(size)}") if size else None


def by_half(size: int) -> int:
    """Return a size raised by half, by 1 at least."""
    return max(size + 1, size * 3 // 2)


def megabytes(size: int) -> str:
    """Return bytes as a memory directive: 24G, 1536M."""
    count = size >> 20
    return f"{count >> 10}G" if count % 1024 == 0 and count else f"{count}M"


def _more_time(root: Path, chain: Chain, job: str, id_: str, same: Resubmit, partition: str) -> Resubmit | str:
    record = job_record.record(root, chain.name, id_)
    earlier = [attempt.id for attempt in chain.jobs[job].attempts if attempt.id != id_]
    before = [job_record.record(root, chain.name, earlier_id) for earlier_id in earlier]
    if job_record.progressed(record, record.restart, before):
        return replace(same, counted=False, why="on from its checkpoint, in the same time")
    minutes = Resources(directives=same.resources).time_minutes
    if not minutes:
        return same
    longer = by_half(minutes)
    ceiling = limits(same.resources, partition).get("time")
    if ceiling is not None and longer > ceiling.value:
        if minutes >= ceiling.value:
            return f"no progress in {minutes} minutes, and {NO_MORE}: {ceiling.rule}"
        longer = ceiling.value
    why = f"no progress in {minutes} minutes: time {longer} minutes"
    return replace(same, resources={**same.resources, "time": str(longer)}, why=why)


def _smaller_batches(root: Path, chain: Chain, job: str, same: Resubmit) -> Resubmit | str:
    require_configuration(root, chain)
    config = load(chains.folder(root, chain.name) / "config.yaml", same.overrides)
    changes = smaller_batches(config, job)
    if not changes:
        return "its batches are of one row already; policy.load_in_4bit, policy.max_seq_len or a larger GPU are left"
    changed = {change.split("=")[0] for change in changes}
    unchanged = tuple(override for override in same.overrides if override.split("=")[0] not in changed)
    return replace(same, overrides=(*unchanged, *changes), why=" ".join(changes))


def _lighter(h: HierarchicalConfig) -> Sequence[str]:
    if not h.gradient_checkpointing:
        return ("hierarchical.gradient_checkpointing=true",)
    return ("hierarchical.micro_batch=1",) if h.micro_batch != 1 else ()


def smaller_batches(config: Config, job: str, *, smallest: bool = False) -> Sequence[str]:
    """Return the overrides that shrink a job's batches to their largest proper divisor (`smallest`: one row), with as
    many more of them, so that their product stays the same; () if they cannot shrink."""
    phase = next((name for name in PHASES if name == job), None)
    if phase is None:
        size = config.rollout.rows
        played = (f"rollout.batch_size={1 if smallest else size // 2}",) if size > 1 else ()
        return (*(_lighter(config.hierarchical) if job == "hierarchical" else ()), *played)
    knobs = config.training.phase(phase)
    if knobs.batch_size == 1:
        return ()
    smaller = 1 if smallest else max(size for size in range(1, knobs.batch_size) if knobs.batch_size % size == 0)
    more = knobs.gradient_accumulation_steps * (knobs.batch_size // smaller)
    stem = f"training.{phase}"
    return (f"{stem}.batch_size={smaller}", f"{stem}.gradient_accumulation_steps={more}")
