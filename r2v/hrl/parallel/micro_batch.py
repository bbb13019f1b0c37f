"""How many rows a network takes at a time on the GPUs at hand, by the planner's arithmetic (`r2v.memory`).

It changes no result: the batch of an update is what it is, rows at a time only decide how often gradients are added up.
A GPU that turns out smaller than planned is met by halving them (`r2v.memory.retry_on_oom`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from r2v import distributed
from r2v.config import HierarchicalConfig, PolicyConfig
from r2v.errors import UsageError
from r2v.hrl.parallel.placement import Devices, Placement
from r2v.memory.batch_table import optimize_batch_processing
from r2v.memory.calibration import factors_for
from r2v.memory.configured import job_of_hierarchical
from r2v.memory.planner.planner import Plan, plan
from r2v.memory.planner.training_job import Machine
from r2v.memory.report import verdict
from r2v.memory.shapes import DECODERS

ROWS = 32
"""On a CPU. On GPUs, adapters on a base in parts, and models whose arithmetic the planner does not know, go by the
seed's table."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Rows at a time, and the plan that they come from, where there was one to make."""

    rows: int
    checkpoint: bool = False
    """Layers run again in backward."""
    plan: Plan | None = None


def fit(policy: PolicyConfig, h: HierarchicalConfig, placement: Placement, devices: Devices, family: str) -> Fit:
    """`h.micro_batch` and `h.gradient_checkpointing`, or what fits. Raises UsageError, with the arithmetic, where not
    even one row does."""
    again = bool(h.gradient_checkpointing)
    used = {device for device in vars(devices).values() if device.startswith("cuda")}
    if not used:
        return Fit(rows=h.micro_batch or ROWS, checkpoint=again)
    import torch

    memory = min(torch.cuda.get_device_properties(device).total_memory for device in used)
    in_parts = h.shards != "none" and distributed.ranks() > 1
    if family not in DECODERS or (in_parts and policy.lora_r > 0):
        rows = optimize_batch_processing(memory / 2**30)["micro_batch"]
        return Fit(rows=h.micro_batch or rows, checkpoint=again)
    gpu = torch.cuda.get_device_name(min(used))
    found = planned(policy, h, placement, memory, len(used) * distributed.ranks(), gpu)
    return Fit(
        rows=h.micro_batch or rows_of(found),
        checkpoint=found.strategy.checkpoint,
        plan=found if len(used) == 1 else None,
    )


def planned(
    policy: PolicyConfig, h: HierarchicalConfig, placement: Placement, memory: float, gpus: int, gpu: str = ""
) -> Plan:
    """The plan for GPUs of `memory` bytes, of which there are `gpus`, each a `gpu` by name. Raises UsageError where
    nothing fits and no `h.micro_batch` insists, or `h.calibration` is of another GPU or model."""
    job = job_of_hierarchical(policy, h)
    factors = factors_for(Path(h.calibration) if h.calibration else None, job.model, gpu)
    found = plan(
        job,
        Machine(memory=memory, gpus=gpus, factors=factors),
        placement=placement,
        shards=h.shards if gpus > 1 else "none",
        checkpoint=h.gradient_checkpointing,
        offload=h.offload or placement == "split",
    )
    if not found.fits and h.micro_batch is None:
        raise UsageError(f"hierarchical.placement={placement}: {verdict(found)}; r2v plan says what would")
    return found


def rows_of(found: Plan) -> int:
    """The most rows at a time with which every phase fits."""
    return max(1, min(one.micro_batch for one in found.phases if one.phase.action != "generate"))
