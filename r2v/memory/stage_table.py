"""All stages of a configuration beside one GPU: who is in memory, the peak, the batch that fits, and an estimate of the
time. What `r2v plan --config FILE` prints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from r2v.config import Config
from r2v.console import text_table
from r2v.memory.acting_report import acting_verdict
from r2v.memory.configured import acting_job, job_of_stage
from r2v.memory.measured import MeasuredTime, measured_time
from r2v.memory.planner.acting import ActingPlan, plan_acting
from r2v.memory.planner.planner import Plan, plan
from r2v.memory.planner.stage_names import ACTING_STAGES, STAGES, WITHOUT_MODEL
from r2v.memory.planner.training_job import Machine, StageName
from r2v.memory.report import verdict
from r2v.memory.seconds import ASSUMED, BANDWIDTH, EPISODES, EVALUATED, UTILISATION, TimeEstimate, estimate
from r2v.memory.sizes import GIB, gib


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """A stage and its plan; None where it holds no model."""

    stage: str
    plan: Plan | ActingPlan | None
    time: TimeEstimate | None
    measured: MeasuredTime | None = None
    """What an earlier run on such a GPU says of the time."""

    @property
    def seconds(self) -> float | None:
        """As measured, or else estimated; None where it holds no model."""
        return self.measured.seconds if self.measured else None if self.time is None else self.time.seconds


def plan_stages(config: Config, machine: Machine, root: Path | None = None) -> list[PlannedStage]:
    """The stages that this configuration runs; times by earlier runs below `root` (None: by none). Raises InputError
    where its model's sizes cannot be had."""
    left_out = set[str]() if config.hierarchical.enabled else {"hierarchical"}
    if config.router.imputed:  # nothing is executed, and the router reads rows alone
        left_out |= set(ACTING_STAGES) - {"router_features"} | {"verifier", "preference"}
    return [plan_stage(config, stage, machine, root) for stage in STAGES if stage not in left_out]


def plan_stage(config: Config, stage: str, machine: Machine, root: Path | None = None) -> PlannedStage:
    """One stage as configured; its time by an earlier run below `root`, where there is one on such a GPU."""
    if stage in WITHOUT_MODEL:
        return PlannedStage(stage=stage, plan=None, time=None)
    planned: Plan | ActingPlan
    if stage in ACTING_STAGES:
        planned = plan_acting(acting_job(config, stage), machine)
        model, checkpointing, batch = planned.job.model, False, max(1, planned.batch)
    else:
        planned = plan(job_of_stage(config, cast(StageName, stage)), machine)
        model, checkpointing, batch = planned.job.model, planned.strategy.checkpoint, 1

    def time_of(configured: Config) -> TimeEstimate:
        kind, gpus = machine.kind, machine.gpus
        return estimate(configured, stage, model, card=kind, gpus=gpus, checkpointing=checkpointing, batch=batch)

    time = time_of(config)
    if not time.seconds:
        return PlannedStage(stage=stage, plan=planned, time=None)
    if root is None:
        return PlannedStage(stage=stage, plan=planned, time=time)
    measured = measured_time(
        stage, config, time.seconds, lambda made, _: time_of(made).seconds, gpu=machine.kind, root=root
    )
    return PlannedStage(stage=stage, plan=planned, time=time, measured=measured)


def fits(stages: list[PlannedStage]) -> bool:
    """Whether all of them do."""
    return all(stage.plan is None or stage.plan.fits for stage in stages)


def stages_report(config: Config, machine: Machine, stages: list[PlannedStage]) -> list[str]:
    """The table, and under it what it rests on."""
    rows = [("stage", "in memory", "peak (GiB)", "peak at", "batch", "", "time (estimate)"), *map(_row, stages)]
    card = next((stage.time.card for stage in stages if stage.time), ASSUMED)
    assumed = "" if machine.kind.lower() == card else " (assumed: --gpu-type names another)"
    tasks = "" if config.data.num_episodes else f", {EPISODES:,} training tasks (data.num_episodes is not set)"
    tasks += "" if config.evaluation.num_tasks else f", {EVALUATED} evaluation tasks (evaluation.num_tasks is not set)"
    others = "other " if any(stage.measured for stage in stages) else ""
    return [
        f"{config.policy.model_name} on {machine.gpus} x {machine.memory / GIB:.2f} GiB",
        "",
        *text_table(rows, right=(2, 4, 6)).splitlines(),
        "",
        *(f"time of {stage.stage}: {stage.measured}" for stage in stages if stage.measured),
        f"{others}times are estimates, not measured: {UTILISATION:.0%} of the operations in the datasheet of "
        f"{card}{assumed}, {BANDWIDTH:.0%} of its bandwidth; full contexts, episodes of the greatest length, no "
        f"replies shared between methods{tasks};",
        "without what environments and the LLM take",
        *(f"{stage.stage}: {_advice(stage.plan)}" for stage in stages if stage.plan and _advice(stage.plan)),
    ]


def _row(stage: PlannedStage) -> tuple[str, ...]:
    plan = stage.plan
    if plan is None:
        return (stage.stage, "no local model", "", "", "", "", "")
    binding = plan.binding
    batch = f"{binding.micro_batch or 'none'} of {binding.phase.batch}"
    return (
        stage.stage,
        _who(plan),
        gib(binding.memory.total),
        f"{binding.phase.name}: {binding.memory.peak_at}",
        batch if isinstance(plan, Plan) else f"{plan.batch or 'none'} of {plan.job.batch}",
        "fits" if plan.fits else "DOES NOT FIT",
        "" if stage.seconds is None else f"{duration(stage.seconds)}{', measured' if stage.measured else ''}",
    )


def _who(plan: Plan | ActingPlan) -> str:
    if isinstance(plan, Plan) and plan.job.stage == "hierarchical":
        return str(plan.strategy)
    if isinstance(plan, Plan):
        trained = f"adapters of rank {plan.job.lora_rank}" if plan.job.lora_rank else "all weights"
        return f"{trained}{', checkpointing' if plan.strategy.checkpoint else ''}"
    names = ", ".join((*plan.job.actors, *plan.job.verifiers))
    return f"one base: {names}" if plan.job.shared else f"{len(plan.device.device.roles)} models: {names}"


def _advice(plan: Plan | ActingPlan) -> str:
    if isinstance(plan, Plan):
        return "" if plan.fits else verdict(plan)
    return "" if plan.batch == plan.job.batch else acting_verdict(plan)


def duration(seconds: float) -> str:
    """A time in two units.

    >>> duration(5000)
    '1 h 23 min'
    """
    minutes = round(seconds / 60)
    if minutes < 1:
        return "under 1 min"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def as_json(stages: list[PlannedStage]) -> list[dict[str, Any]]:
    """The table as JSON values: sizes in bytes, times in seconds."""
    found = []
    for stage in stages:
        row: dict[str, Any] = {"stage": stage.stage, "local_model": stage.plan is not None}
        if stage.plan is not None:
            binding = stage.plan.binding
            row |= {
                "fits": stage.plan.fits,
                "peak": round(binding.memory.total),
                "peak_at": f"{binding.phase.name}: {binding.memory.peak_at}",
                "micro_batch": binding.micro_batch,
                "batch": binding.phase.batch,
                "roles": [role.name for device in _devices(stage.plan) for role in device.device.roles],
            }
        if stage.time is not None:
            row["seconds_estimate"] = round(stage.time.seconds)
        if stage.measured is not None:
            row["seconds_measured"] = round(stage.measured.seconds)
            row["measured_in"] = f"{stage.measured.run.job}-{stage.measured.run.fingerprint}"
        found.append(row)
    return found


def _devices(plan: Plan | ActingPlan) -> tuple[Any, ...]:
    return plan.devices if isinstance(plan, Plan) else (plan.device,)
