"""What the kernels of the GPU at hand add to a plan, measured phase by phase with random weights.

    r2v plan --model meta-llama/Llama-3.2-3B --probe calibration.json                # on a machine with the GPU
    r2v plan --model meta-llama/Llama-3.2-3B --calibration calibration.json          # anywhere, from then on

Each phase is rehearsed as it is planned (`r2v.memory.tracker.fake_tensor_run`): its roles stand there, a first step
makes what then
stays (moments, workspaces), and the peak of a second one is held against the plan. A phase that does not fit is tried
with half the rows: what a GPU adds is proportional to the work.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from r2v.errors import UsageError
from r2v.log import logger
from r2v.memory.calibration import Key, called, factor
from r2v.memory.planner.phases import Need
from r2v.memory.planner.planner import Plan, Planned
from r2v.memory.shapes import values_of
from r2v.memory.sizes import gib
from r2v.memory.tracker.fake_tensor_run import Case, PhaseName, measure, planned

_REHEARSED: Mapping[str, PhaseName] = {
    "rollout, actor": "rollout",
    "reference": "reference",
    "actor": "actor",
    "guidance": "guidance",
    "critic": "critic",
    "bc": "bc",
    "verifier": "verifier",
}
"""Phases of plans that can be done with random weights, and what they are called there."""
_ALIKE = {"rollout, actor": ("rollout, guidance",), "critic": ("value",)}
"""What is done by the same kernels."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A phase that was measured."""

    phase: str
    rows: int
    measured: int
    """Bytes, its peak."""
    need: Need
    """What the plan says of that very case."""
    factor: float
    """On the plan's `working` bytes."""


def probe(plan: Plan, measured: Callable[[Case], int] = measure) -> Iterator[Probed]:
    """Measure the phases of a plan one after the other, those that fit with a row at least. Raises UsageError for a
    plan that one GPU cannot rehearse."""
    _check(plan)
    for one in plan.phases:
        if one.phase.name in _REHEARSED:
            yield from _probed(one.phase.name, _case(plan, one), measured)


def factors_of(found: list[Probed]) -> dict[str, float]:
    """By phase, those too that are done by the same kernels."""
    return {name: one.factor for one in found for name in (one.phase, *_ALIKE.get(one.phase, ()))}


def key_of(plan: Plan) -> Key:
    """What factors that are measured here hold for. Raises UsageError where there is no GPU."""
    _require_gpu()
    shape = plan.work.model
    return Key(
        model=called(shape), parameters=shape.parameters, gpu=torch.cuda.get_device_name(), torch=str(torch.__version__)
    )


def memory_here() -> int:
    """Bytes of the GPU here. Raises UsageError where there is none."""
    _require_gpu()
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def _require_gpu() -> None:
    if not torch.cuda.is_available():
        raise UsageError(
            "--probe: measures on a GPU, and torch sees none here; run it in a job, srun --gres=gpu:1 r2v "
            "plan ..., or leave --probe out"
        )


def _check(plan: Plan) -> None:
    setting, work = plan.setting, plan.work
    lacking = {
        "in 4 bits": work.four_bit,
        "with adamw_8bit": work.optimizer == "adamw_8bit",
        "with placement split": setting.placement == "split",
        f"with shards {setting.shards}": setting.shards != "none",
        "of preference": work.stage == "preference",
    }
    for what, there in lacking.items():
        if there:
            raise UsageError(
                f"--probe: a plan {what} is not rehearsed; take --placement shared or full, --shards "
                "none, no --four-bit, --optimizer adamw, and --stage hierarchical, bc or verifier"
            )


def _case(plan: Plan, one: Planned) -> Case:
    work, critic = plan.work, plan.work.critic
    return Case(
        phase=_REHEARSED[one.phase.name],
        model=values_of(work.model.name),
        critic=None if critic is None else values_of(critic.name),
        lora_rank=work.lora_rank,
        precision=work.precision,
        optimizer=work.optimizer,
        checkpoint=plan.setting.checkpoint,
        chunk=plan.setting.chunk,
        rows=one.rows,
        tokens=one.phase.tokens,
        micro_batches=1 if one.rows >= one.phase.rows else 2,
    )


def _probed(phase: str, case: Case, measured: Callable[[Case], int]) -> Iterator[Probed]:
    """One, or none where not even a row fits."""
    size = _size(case, measured)
    while size is None and case.rows > 1:
        case = replace(case, rows=case.rows // 2, micro_batches=2)
        size = _size(case, measured)
    need = planned(case)
    if size is None:
        logger.warning("  memory: %s does not fit with one row, and is left as it is", phase)
    elif (found := factor(need, size)) > 0:
        yield Probed(phase=phase, rows=case.rows, measured=size, need=need, factor=found)
    else:
        logger.warning(
            "  memory: %s peaked at %s GiB, below the %s GiB that stand there by the plan; it is left as it is",
            phase,
            gib(size),
            gib(need.resting + need.gradients),
        )


def _size(case: Case, measured: Callable[[Case], int]) -> int | None:
    """Its peak, or None where it does not fit."""
    gc.collect()  # models of the case before hold themselves in circles
    try:
        return measured(case)
    except torch.OutOfMemoryError:
        return None
