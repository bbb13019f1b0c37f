"""Probe: memory that this GPU's kernels add to a plan, measured phase by phase with random weights.

    r2v plan --config configs/hierarchical.yaml --stage hierarchical --probe calibration.json    # on the GPU
    r2v plan --config configs/hierarchical.yaml --stage hierarchical --calibration calibration.json    # anywhere

Each phase runs its planned case (`r2v.memory.measured.rehearsal`) with its own model alone: a first optimizer step
allocates persistent memory (moments, workspaces), and the peak of the next update is compared with the measurement on
fake tensors. A phase that does not fit is retried with half the micro-batch, to which the addition is proportional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from r2v.errors import UsageError
from r2v.log import logger
from r2v.memory.measured.rehearsal import FixedShape, rehearse_on_gpu
from r2v.memory.measurement import MeasuredCase, MeasuredMemory
from r2v.memory.on_device.calibration import Calibration, model_label
from r2v.memory.planner.phases import case_of
from r2v.memory.planner.planner import Plan, PlannedPhase
from r2v.memory.planner.state import IN_8_BITS
from r2v.memory.sizes import gib

_SAME_KERNELS = {"rollout, actor": ("rollout, guidance",)}
"""Measured phase -> phases with the same kernels, which share its factor."""
_NOT_PROBED = ("load", "rollout, guidance")
Run = Callable[[MeasuredCase, FixedShape], int]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """Measured phase; sizes in bytes."""

    phase: str
    micro_batch: int
    measured: int
    predicted: float
    factor: float
    """Factor on the plan's activation bytes."""


def probe(plan: Plan, run: Run = rehearse_on_gpu) -> Iterator[Probed]:
    """Yield the measured phases of a plan, one after the other, that fit with a micro-batch of at least 1. `run`
    returns a case's peak in bytes. Raise UsageError for a plan that cannot run on one GPU with random weights."""
    _check_can_run(plan)
    for planned in plan.phases:
        if planned.phase.name not in _NOT_PROBED and (probed := _probe_phase(plan, planned, run)) is not None:
            yield probed


def factors_of(probed: list[Probed]) -> dict[str, float]:
    """Return the factors by phase, including phases with the same kernels."""
    return {name: result.factor for result in probed for name in (result.phase, *_SAME_KERNELS.get(result.phase, ()))}


def calibration_here(plan: Plan) -> Calibration:
    """Return a calibration, without factors, of the plan's model on this machine's GPU. Raise UsageError without
    one."""
    _require_gpu()
    return Calibration(
        model=model_label(plan.job.model),
        parameters=plan.job.model.sizes.parameters,
        gpu=torch.cuda.get_device_name(),
        torch=str(torch.__version__),
        factors={},
    )


def memory_here() -> int:
    """Return the memory of this machine's GPU in bytes. Raise UsageError without one."""
    _require_gpu()
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


def _require_gpu() -> None:
    if not torch.cuda.is_available():
        raise UsageError(
            "--probe: measures on a GPU, and torch sees none here; run it in a job, srun --gres=gpu:1 r2v "
            "plan ..., or leave --probe out"
        )


def _check_can_run(plan: Plan) -> None:
    not_covered = {
        "in 4 bits": plan.job.four_bit,
        f"with {plan.job.optimizer}": plan.job.optimizer in IN_8_BITS,
        f"with shards {plan.strategy.shards}": plan.strategy.shards != "none",
    }
    for description, applies in not_covered.items():
        if applies:
            raise UsageError(
                f"--probe: cannot measure a plan {description}; set policy.load_in_4bit=false, optimizer adamw and "
                "shards none"
            )


def _probe_phase(plan: Plan, planned: PlannedPhase, run: Run) -> Probed | None:
    """Return the result, or None if no micro-batch fits or the peak is below the static bytes."""
    name, rows = planned.phase.name, max(1, planned.micro_batch)
    measured = None
    while measured is None:
        case = case_of(plan.job, plan.strategy, planned.phase, rows)
        shape = _shape(plan, planned, rows, case)
        try:
            measured = run(case, shape)
        except torch.OutOfMemoryError:
            if rows == 1:
                logger.warning("  phase not calibrated, micro-batch of 1 does not fit: phase=%s", name)
                return None
            rows //= 2
    static, activation = expected(plan.lookup(case), shape)
    factor = (measured - static) / activation
    if factor <= 0:
        logger.warning(
            "  phase not calibrated, peak below the plan's static bytes: phase=%s measured_gib=%s static_gib=%s",
            *(name, gib(measured), gib(static)),
        )
        return None
    return Probed(phase=name, micro_batch=rows, measured=measured, predicted=static + activation, factor=factor)


def _shape(plan: Plan, planned: PlannedPhase, rows: int, case: MeasuredCase) -> FixedShape:
    tokens = planned.phase.tokens
    predicted = min(plan.job.completion_tokens, tokens) if case.completions else tokens
    return FixedShape(rows=rows, tokens=tokens, predicted=predicted)


def expected(case: MeasuredMemory, shape: FixedShape) -> tuple[float, float]:
    """Return the static bytes, gradients included, and the activation bytes of a case as the probe runs it."""
    stretches = ("accumulated", "step", "read", "prompt", "copied", "choose", "token", "last choose")
    predicted = shape.rows * shape.predicted
    peak = case.peak(stretches, rows=shape.rows, tokens=shape.tokens, predicted=predicted)
    moments = 2 * case.trained_bytes if any(moment.stretch == "step" for moment in case.moments) else 0
    gradients = case.trained_bytes if moments else 0
    return case.weights + moments + gradients, peak.size - gradients
