"""The micro-batch sizes that fit the GPUs at hand, a network's each, by the memory planner (`r2v.memory`).

They change no result: an update's batch stays the same, only the number of gradient accumulation steps differs, and a
rollout generates as many completions in more parts. Where a GPU runs out of memory all the same, the rows are halved
(`r2v.memory.on_device.retry_on_oom`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from r2v import distributed
from r2v.config import HierarchicalConfig, PolicyConfig
from r2v.errors import UsageError
from r2v.hrl.parallel.placement import Devices
from r2v.log import logger
from r2v.memory.batch_table import optimize_batch_processing
from r2v.memory.configured import job_of_hierarchical
from r2v.memory.on_device.calibration import factors_for
from r2v.memory.planner.planner import Plan, plan
from r2v.memory.planner.training_job import Machine, Placement
from r2v.memory.report import verdict
from r2v.memory.store import Measure, Measuring, NotMeasuredError, UnmeasurableError, measurement

CPU_MICRO_BATCH = 32
"""Rows on a CPU. On GPUs, adapters on a sharded base and models that do not run on tensors without data take their
size from a table by memory (`r2v.memory.batch_table`)."""
REHEARSED = "r2v.hrl.training.rehearsal:memory"
"""The function by which the planner measures the networks, as the stage's row in JOBS has it."""


@dataclass(frozen=True, kw_only=True)
class MicroBatchSizes:
    """Rows at a time of each network: actor, guidance, reference, critic, value."""

    smallest: int
    by_network: Mapping[str, int] = field(default_factory=dict)
    by_rollout: Mapping[str, int] = field(default_factory=dict)
    """Completions generated at a time, by the role that generates; empty where there is no plan."""

    def of(self, network: str) -> int:
        """The network's; the smallest for one that nobody planned."""
        return self.by_network.get(network, self.smallest)

    def rollout_rows(self, most: int) -> RolloutRows:
        """The rows that generation begins with: the planned ones, and `most` (`rollout.batch_size`) of them."""
        rows = {role: min(most, self.by_rollout.get(role, most)) for role in ("actor", "guidance")}
        read = min(self.of("actor"), self.of("guidance"))  # whose updates read as many, and keep more of them
        return RolloutRows(rows=rows, read=min(most, read))

    def __str__(self) -> str:
        """`8`, or `5 (critic 54)` where networks differ."""
        others = [f"{name} {size}" for name, size in sorted(self.by_network.items()) if size != self.smallest]
        return f"{self.smallest} ({', '.join(others)})" if others else str(self.smallest)


@dataclass(kw_only=True)
class RolloutRows:
    """Completions at a time that generation has room for, by role, and those whose log-probabilities are read. Halved
    where they turn out to be too many, for the rest of the run."""

    rows: dict[str, int]
    read: int


@dataclass(frozen=True, kw_only=True)
class MicroBatchFit:
    """Micro-batch sizes that fit, and the plan that they come from, where one could be made."""

    sizes: MicroBatchSizes
    gradient_checkpointing: bool = False
    plan: Plan | None = None


def fit(policy: PolicyConfig, h: HierarchicalConfig, placement: Placement, devices: Devices) -> MicroBatchFit:
    """`h.micro_batch` and `h.gradient_checkpointing`, or what fits. Raises UsageError, with the arithmetic, where not
    even one row does."""
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
        logger.warning("  memory: %s; micro-batches of %s, by the GPU's memory alone", error, table.sizes)
        return table
    return MicroBatchFit(
        sizes=largest_micro_batches(best, h.micro_batch),
        gradient_checkpointing=best.strategy.checkpoint,
        plan=best if len(used) == 1 else None,
    )


def _planned_by_rank0(*work: Any) -> Plan:
    """The plan, for which rank 0 measures what no file has; the other ranks wait for its files."""
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
    """The plan for GPUs of `memory` bytes, of which there are `gpus`, each a `gpu` by name. Raises UsageError where
    nothing fits and no `h.micro_batch` insists, or `h.calibration` is of another GPU or model; NotMeasuredError where
    no file has a measurement and `measure` is None."""
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


def largest_micro_batches(best: Plan, asked: int | None = None) -> MicroBatchSizes:
    """The largest micro-batch with which each network's phase fits, or the one `asked` for; and the rows with which
    each rollout fits."""
    rows = {peak.phase.name: max(1, peak.micro_batch) for peak in best.phases if peak.phase.action == "generate"}
    rollouts = {name.removeprefix("rollout, "): size for name, size in rows.items()}
    if asked:
        return MicroBatchSizes(smallest=asked, by_rollout=rollouts)
    sizes = {peak.phase.name: max(1, peak.micro_batch) for peak in best.phases if peak.phase.action != "generate"}
    return MicroBatchSizes(smallest=min(sizes.values()), by_network=sizes, by_rollout=rollouts)
