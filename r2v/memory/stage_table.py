"""Stage table: models in memory, peak and largest batch of all stages of a configuration on one kind of GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from r2v.config import Config
from r2v.console import text_table
from r2v.memory.configured import acting_job, job_of_stage
from r2v.memory.planner.acting import ActingPlan, plan_acting
from r2v.memory.planner.phases import Lookup
from r2v.memory.planner.planner import Plan, plan
from r2v.memory.planner.training_job import Machine, StageName
from r2v.memory.report import verdict
from r2v.memory.sizes import gib
from r2v.memory.store import Measure


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """A stage and its plan; None without a model in memory."""

    stage: str
    plan: Plan | ActingPlan | None

    @property
    def fits(self) -> bool:
        """True if the stage fits or holds no model."""
        return self.plan is None or self.plan.fits


def plan_stages(
    config: Config, stages: Mapping[str, tuple[str, Machine]], measure: Measure | None, lookup: Lookup
) -> list[PlannedStage]:
    """Return the plans of stages. `stages`: stage -> (`memory` of its row in JOBS, its machine). Raise InputError if
    the model's sizes are unknown, and as `lookup` does."""
    return [
        PlannedStage(stage=stage, plan=_plan_of(config, stage, code, machine, measure, lookup))
        for stage, (code, machine) in stages.items()
    ]


def _plan_of(
    config: Config, stage: str, code: str, machine: Machine, measure: Measure | None, lookup: Lookup
) -> Plan | ActingPlan | None:
    if stage in get_args(StageName):
        return plan(job_of_stage(config, cast(StageName, stage), code, measure), machine, lookup)
    if not code or config.router.imputed:
        return None
    return plan_acting(acting_job(config, stage, code, measure), machine, lookup)


def stages_report(config: Config, stages: list[PlannedStage]) -> list[str]:
    """Return the table, and a verdict on each stage that does not run as configured."""
    rows = [("stage", "in memory", "GPUs (GiB)", "peak (GiB)", "peak at", "batch", ""), *map(_row, stages)]
    return [
        config.policy.model_name,
        "",
        *text_table(rows, right=(2, 3, 5)).splitlines(),
        "",
        *(f"{row.stage}: {verdict(row.plan)}" for row in stages if row.plan is not None and _needs_change(row.plan)),
    ]


def _needs_change(plan: Plan | ActingPlan) -> bool:
    return not plan.fits or (isinstance(plan, ActingPlan) and plan.batch < plan.job.batch and not plan.job.chosen)


def _row(stage: PlannedStage) -> tuple[str, ...]:
    plan = stage.plan
    if plan is None:
        return (stage.stage, "no local model", "", "", "", "", "")
    binding = plan.binding
    rows = binding.micro_batch if isinstance(plan, Plan) else plan.batch
    return (
        stage.stage,
        _who(plan),
        f"{plan.machine.gpus} x {gib(plan.machine.memory)}",
        gib(binding.memory.total),
        f"{binding.phase.name}: {binding.memory.peak_at}",
        f"{rows or 'none'} of {binding.phase.batch}",
        "fits" if plan.fits else "DOES NOT FIT",
    )


def _who(plan: Plan | ActingPlan) -> str:
    if isinstance(plan, Plan) and plan.job.stage == "hierarchical":
        return str(plan.strategy)
    if isinstance(plan, Plan):
        trained = f"adapters of rank {plan.job.lora_rank}" if plan.job.lora_rank else "all weights"
        return f"{trained}{', checkpointing' if plan.strategy.checkpoint else ''}"
    names = ", ".join((*plan.job.actors, *plan.job.verifiers))
    return f"one base: {names}" if plan.job.shared else f"{len(plan.devices[0].device.roles)} models: {names}"


def as_json(stages: list[PlannedStage]) -> list[dict[str, Any]]:
    """Return the table as JSON values, sizes in bytes."""
    return [{"stage": row.stage, "local_model": row.plan is not None, **_figures(row.plan)} for row in stages]


def _figures(plan: Plan | ActingPlan | None) -> dict[str, Any]:
    if plan is None:
        return {}
    binding = plan.binding
    return {
        "fits": plan.fits,
        "peak": round(binding.memory.total),
        "peak_at": f"{binding.phase.name}: {binding.memory.peak_at}",
        "micro_batch": binding.micro_batch,
        "batch": binding.phase.batch,
        "roles": [role.name for device in plan.devices for role in device.device.roles],
    }
