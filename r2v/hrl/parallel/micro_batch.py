"""Micro-batch sizes of each network that fit the available GPUs, from the memory planner (`r2v.memory`).

They change no result: an update's batch stays the same, with more gradient accumulation steps, and a rollout generates
the same completions in more parts. If a GPU runs out of memory nevertheless, the rows are halved
(`r2v.memory.on_device.retry_on_oom`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from r2v import distributed
from r2v.config import HierarchicalConfig, PolicyConfig, RolloutConfig
from r2v.errors import UsageError
from r2v.hrl.parallel.placement import Devices
from r2v.log import logger
from r2v.memory.batch_table import optimize_batch_processing
from r2v.memory.configured import job_of_hierarchical
from r2v.memory.on_device.calibration import factors_for
from r2v.memory.planner.acting import MOST_ROWS
from r2v.memory.planner.planner import Plan, plan
from r2v.memory.planner.training_job import Machine, Placement
from r2v.memory.report import verdict
from r2v.memory.store import Measure, Measuring, NotMeasuredError, UnmeasurableError, measurement

CPU_MICRO_BATCH = 32
"""Rows on a CPU. On GPUs, adapters on a sharded base and models that do not run on tensors without data use a table by
memory (`r2v.memory.batch_table`)."""
REHEARSED = "r2v.hrl.training.rehearsal:memory"
"""Function by which the planner measures the networks, as in the stage's row of JOBS."""


@dataclass(frozen=True, kw_only=True)
class MicroBatchSizes:
    """Micro-batch sizes in rows by network: actor, guidance, reference, critic, value."""

    smallest: int
    by_network: Mapping[str, int] = field(default_factory=dict)
    by_rollout: Mapping[str, int] = field(default_factory=dict)
    """Completions generated at a time, by role; empty without a plan."""

    def of(self, network: str) -> int:
        """Return the network's size; the smallest one for an unplanned network."""
        return self.by_network.get(network, self.smallest)

    def rollout_rows(self, rollout: RolloutConfig) -> RolloutRows:
        """Return the initial rows of generation: the planned ones, but at most `rollout.batch_size`, or `MOST_ROWS` if
        it is None; without a plan, `rollout.rows`."""
        most = rollout.batch_size or MOST_ROWS
        rows = {role: min(most, self.by_rollout.get(role, rollout.rows)) for role in ("actor", "guidance")}
        # a lower bound: updates read as many rows and keep more of each
        read = min(self.of("actor"), self.of("guidance"))
        return RolloutRows(rows=rows, read=min(most, read))

    def __str__(self) -> str:
        """`8`, or `5 (critic 54)` where networks differ."""
        others = [f"{name} {size}" for name, size in sorted(self.by_network.items()) if size != self.smallest]
        return f"{self.smallest} ({', '.join(others)})" if others else str(self.smallest)


@dataclass(kw_only=True)
class RolloutRows:
    """Number of completions generated at a time, by role, and read for their log-probabilities at a time. Halved for
    the rest of the run if they do not fit."""

    rows: dict[str, int]
    read: int


@dataclass(frozen=True, kw_only=True)
class MicroBatchFit:
    """Micro-batch sizes that fit, and their plan, if there is one."""

    sizes: MicroBatchSizes
    gradient_checkpointing: bool = False
    plan: Plan | None = None


def fit(policy: PolicyConfig, h: HierarchicalConfig, placement: Placement, devices: Devices) -> MicroBatchFit:
    """Return `h.micro_batch` and `h.gradient_checkpointing` if set, else values that fit. Raises UsageError, with the
    arithmetic, if not even one row fits."""
    checkpointing = bool(h.gradient_checkpointing)
    used = {device for device in vars(devices).values() if device.startswith("cuda")}
    if not used:
        return MicroBatchFit(
            sizes=MicroBatchSizes(smallest=h.micro_batch or CPU_MICRO_BATCH), gradient_checkpointing=checkpointing
        )
    import torch

    memory = min(torch.cuda.get_device_properties(device).total_memory for device in used)
    sharded = h.shards != "none" and distributed.ranks() > 1
    table = MicroBatchFit(
        sizes=MicroBatchSizes(smallest=h.micro_batch or optimize_batch_processing(memory / 2**30)["micro_batch"]),
        gradient_checkpointing=checkpointing,
    )
    if sharded and policy.lora_r > 0:
        return table
    gpu = torch.cuda.get_device_name(min(used))
    try:
        best = _planned_by_rank0(policy, h, placement, memory, len(used) * distributed.ranks(), gpu)
    except (NotMeasuredError, UnmeasurableError) as error:
        logger.warning("  memory plan missing, size chosen by GPU memory: micro_batch=%s reason=%s", table.sizes, error)
        return table
    return MicroBatchFit(
        sizes=largest_micro_batches(best, h.micro_batch),
        gradient_checkpointing=best.strategy.checkpoint,
        plan=best if len(used) == 1 else None,
    )


def _planned_by_rank0(*work: Any) -> Plan:
    """Return the plan. Rank 0 measures missing values and writes them to files; the other ranks wait for these."""
    with Measuring() as measure:
        if distributed.rank():
            distributed.wait_for_all()
            return planned(*work)
        try:
            return planned(*work, measure=measure)
        finally:
            distributed.wait_for_all()


def planned(
    policy: PolicyConfig,
    h: HierarchicalConfig,
    placement: Placement,
    memory: float,
    gpus: int,
    gpu: str = "",
    *,
    measure: Measure | None = None,
) -> Plan:
    """Return the plan for `gpus` GPUs of `memory` bytes with the name `gpu`. Raises UsageError if nothing fits and
    `h.micro_batch` is not set, or `h.calibration` is of another GPU or model; NotMeasuredError if a measurement is
    missing and `measure` is None."""
    job = job_of_hierarchical(policy, h, REHEARSED, measure)
    factors = factors_for(Path(h.calibration) if h.calibration else None, job.model, gpu)
    best = plan(
        job,
        Machine(memory=memory, gpus=gpus, factors=factors),
        partial(measurement, measure=measure),
        placement=placement,
        shards=h.shards if gpus > 1 else "none",
        checkpoint=h.gradient_checkpointing,
        offload=h.offload or placement == "split",
    )
    if not best.fits and h.micro_batch is None:
        raise UsageError(f"hierarchical.placement={placement}: {verdict(best)}; r2v plan says what would")
    return best


def largest_micro_batches(best: Plan, requested: int | None = None) -> MicroBatchSizes:
    """Return the largest micro-batch of each network that fits, or the `requested` one, and the rows of each rollout
    that fit."""
    rows = {peak.phase.name: max(1, peak.micro_batch) for peak in best.phases if peak.phase.action == "generate"}
    rollouts = {name.removeprefix("rollout, "): size for name, size in rows.items()}
    if requested:
        return MicroBatchSizes(smallest=requested, by_rollout=rollouts)
    sizes = {peak.phase.name: max(1, peak.micro_batch) for peak in best.phases if peak.phase.action != "generate"}
    return MicroBatchSizes(smallest=min(sizes.values()), by_network=sizes, by_rollout=rollouts)
