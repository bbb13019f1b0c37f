"""Probe: what the kernels of the GPU at hand add to a plan, measured phase by phase with random weights.

    r2v plan --config configs/hierarchical.yaml --stage hierarchical --probe calibration.json    # where the GPU is
    r2v plan --config configs/hierarchical.yaml --stage hierarchical --calibration calibration.json    # anywhere

Each phase runs the case that its plan rests on (`r2v.memory.measured.rehearsal`), with its own model alone: a first
optimizer step allocates what then stays (moments, workspaces), and the peak of the update after it is compared with the
measurement on tensors without data. A phase that does not fit is tried with half the micro-batch: what a GPU adds is
proportional to it.
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
"""Phases that run the same kernels as the one measured, and so share its factor."""
_NOT_PROBED = ("load", "rollout, guidance")
Run = Callable[[MeasuredCase, FixedShape], int]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A phase that was measured. Bytes."""

    phase: str
    micro_batch: int
    measured: int
    predicted: float
    factor: float
    """On the activation bytes of the plan."""


def probe(plan: Plan, run: Run = rehearse_on_gpu) -> Iterator[Probed]:
    """Measure the phases of a plan one after the other, as far as they fit with a micro-batch of at least 1. `run`
    returns a case's peak in bytes. Raises UsageError for a plan that cannot run on one GPU with random weights."""
    _check_can_run(plan)
    for planned in plan.phases:
        if planned.phase.name not in _NOT_PROBED and (found := _probe_phase(plan, planned, run)) is not None:
            yield found


def factors_of(probed: list[Probed]) -> dict[str, float]:
    """Factors by phase, those of phases with the same kernels included."""
    return {name: result.factor for result in probed for name in (result.phase, *_SAME_KERNELS.get(result.phase, ()))}


def calibration_here(plan: Plan) -> Calibration:
    """A calibration of the plan's model for the GPU here, without factors. Raises UsageError where there is no GPU."""
    _require_gpu()
    return Calibration(
        model=model_label(plan.job.model),
        parameters=plan.job.model.sizes.parameters,
        gpu=torch.cuda.get_device_name(),
        torch=str(torch.__version__),
        factors={},
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
    """The result, None where not even a micro-batch of 1 fits."""
    name, rows = planned.phase.name, max(1, planned.micro_batch)
    measured = None
    while measured is None:
        case = case_of(plan.job, plan.strategy, planned.phase, rows)
        shape = _shape(plan, planned, rows, case)
        try:
            measured = run(case, shape)
        except torch.OutOfMemoryError:
            if rows == 1:
                logger.warning("  memory: %s does not fit with a micro-batch of 1 and is not calibrated", name)
                return None
            rows //= 2
    known = plan.lookup(case)
    static, activation = expected(known, shape)
    factor = (measured - static) / activation
    if factor <= 0:
        logger.warning(
            "  memory: %s peaked at %s GiB, below the %s GiB that the plan counts as static; it is not calibrated",
            *(name, gib(measured), gib(static)),
        )
        return None
    return Probed(phase=name, micro_batch=rows, measured=measured, predicted=static + activation, factor=factor)


def _shape(plan: Plan, planned: PlannedPhase, rows: int, case: MeasuredCase) -> FixedShape:
    tokens = planned.phase.tokens
    predicted = min(plan.job.completion_tokens, tokens) if case.completions else tokens
    return FixedShape(rows=rows, tokens=tokens, predicted=predicted)


def expected(known: MeasuredMemory, shape: FixedShape) -> tuple[float, float]:
    """Bytes that stay, gradients included, and the activations of a case as the probe runs it."""
    stretches = ("accumulated", "step", "read", "prompt", "copied", "choose", "token", "last choose")
    predicted = shape.rows * shape.predicted
    peak = known.peak(stretches, rows=shape.rows, tokens=shape.tokens, predicted=predicted)
    moments = 2 * known.trained_bytes if any(moment.stretch == "step" for moment in known.moments) else 0
    gradients = known.trained_bytes if moments else 0
    return known.weights + moments + gradients, peak.size - gradients
