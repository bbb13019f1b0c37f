"""Probe: what the kernels of the GPU at hand add to a plan, measured phase by phase with random weights.

    r2v plan --model meta-llama/Llama-3.2-3B --probe calibration.json                # on a machine with the GPU
    r2v plan --model meta-llama/Llama-3.2-3B --calibration calibration.json          # anywhere, from then on

Each phase runs as it is planned (`r2v.memory.tracker.fake_tensor_run.run_on_gpu`): all its roles are on the GPU, a
first optimizer step allocates what then stays (moments, workspaces), and the peak of a second one is compared with the
plan. A phase that does not fit is tried with half the micro-batch: what a GPU adds is proportional to it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from r2v.errors import UsageError
from r2v.log import logger
from r2v.memory.calibration import CalibrationKey, factor, model_label
from r2v.memory.planner.phases import PhaseMemory
from r2v.memory.planner.planner import Plan, PlannedPhase
from r2v.memory.planner.state import IN_8_BITS
from r2v.memory.shapes import values_of
from r2v.memory.sizes import gib
from r2v.memory.tracker.fake_tensor_run import run_on_gpu
from r2v.memory.tracker.phase_case import CasePhase, PhaseCase, planned

_CASE_PHASES: Mapping[str, CasePhase] = {
    "rollout, actor": "rollout",
    "reference": "reference",
    "actor": "actor",
    "guidance": "guidance",
    "critic": "critic",
    "bc": "bc",
    "verifier": "verifier",
}
"""Phases of plans that can run with random weights, and the name of their case."""
_SAME_KERNELS = {"rollout, actor": ("rollout, guidance",), "critic": ("value",)}
"""Phases that run the same kernels as the one measured, and so share its factor."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A phase that was measured."""

    phase: str
    micro_batch: int
    measured: int
    """Its peak in bytes."""
    predicted: PhaseMemory
    """The plan for the same case."""
    factor: float
    """On the activation bytes of the plan."""


def probe(plan: Plan, run: Callable[[PhaseCase], int] = run_on_gpu) -> Iterator[Probed]:
    """Measure the phases of a plan one after the other, as far as they fit with a micro-batch of at least 1. `run`
    returns a case's peak in bytes. Raises UsageError for a plan that cannot run on one GPU with random weights."""
    _check_can_run(plan)
    for planned_phase in plan.phases:
        if planned_phase.phase.name in _CASE_PHASES:
            yield from _probe_phase(planned_phase.phase.name, _case(plan, planned_phase), run)


def factors_of(probed: list[Probed]) -> dict[str, float]:
    """Factors by phase, those of phases with the same kernels included."""
    return {name: result.factor for result in probed for name in (result.phase, *_SAME_KERNELS.get(result.phase, ()))}


def key_of(plan: Plan) -> CalibrationKey:
    """What factors that are measured here hold for. Raises UsageError where there is no GPU."""
    _require_gpu()
    shape = plan.job.model
    return CalibrationKey(
        model=model_label(shape),
        parameters=shape.parameters,
        gpu=torch.cuda.get_device_name(),
        torch=str(torch.__version__),
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
    strategy, job = plan.strategy, plan.job
    not_covered = {
        "in 4 bits": job.four_bit,
        f"with {job.optimizer}": job.optimizer in IN_8_BITS,
        "with placement split": strategy.placement == "split",
        f"with shards {strategy.shards}": strategy.shards != "none",
        "of preference": job.stage == "preference",
    }
    for description, applies in not_covered.items():
        if applies:
            raise UsageError(
                f"--probe: cannot measure a plan {description}; take --placement shared or full, --shards "
                "none, no --four-bit, --optimizer adamw, and --stage hierarchical, bc or verifier"
            )


def _case(plan: Plan, planned_phase: PlannedPhase) -> PhaseCase:
    job, phase = plan.job, planned_phase.phase
    return PhaseCase(
        phase=_CASE_PHASES[phase.name],
        model=values_of(job.model.name),
        critic=None if job.critic is None else values_of(job.critic.name),
        lora_rank=job.lora_rank,
        precision=job.precision,
        optimizer=job.optimizer,
        checkpoint=plan.strategy.checkpoint,
        chunk=plan.strategy.chunk,
        micro_batch=planned_phase.micro_batch,
        tokens=phase.tokens,
        micro_batches=1 if planned_phase.micro_batch >= phase.batch else 2,
    )


def _probe_phase(phase: str, case: PhaseCase, run: Callable[[PhaseCase], int]) -> Iterator[Probed]:
    """One result, or none where not even a micro-batch of 1 fits."""
    measured = _peak(case, run)
    while measured is None and case.micro_batch > 1:
        case = replace(case, micro_batch=case.micro_batch // 2, micro_batches=2)
        measured = _peak(case, run)
    predicted = planned(case)
    if measured is None:
        logger.warning("  memory: %s does not fit with a micro-batch of 1 and is not calibrated", phase)
        return
    measured_factor = factor(predicted, measured)
    if measured_factor > 0:
        yield Probed(
            phase=phase,
            micro_batch=case.micro_batch,
            measured=measured,
            predicted=predicted,
            factor=measured_factor,
        )
    else:
        logger.warning(
            "  memory: %s peaked at %s GiB, below the %s GiB that the plan counts as static; it is not calibrated",
            phase,
            gib(measured),
            gib(predicted.static + predicted.gradients),
        )


def _peak(case: PhaseCase, run: Callable[[PhaseCase], int]) -> int | None:
    """Its peak in bytes, or None where it does not fit."""
    gc.collect()  # models of earlier cases are parts of reference cycles
    try:
        return run(case)
    except torch.OutOfMemoryError:
        return None
