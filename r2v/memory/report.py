"""Report of a memory plan: bytes per role and phase, the binding phase, and the header of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import Any, cast, get_args

from r2v.config import Config
from r2v.console import text_table
from r2v.memory.configured import acting_job, job_of_stage
from r2v.memory.planner.acting import ActingPlan, left_to, plan_acting, smaller
from r2v.memory.planner.phases import Lookup
from r2v.memory.planner.planner import Plan, PlannedDevice, PlannedPhase, plan, remedies
from r2v.memory.planner.roles import whole_state
from r2v.memory.planner.training_job import Machine, StageName
from r2v.memory.sizes import gib, mem_header
from r2v.memory.store import Measure

_PHASE_COLUMNS = (
    "phase",
    "batch",
    "micro-batch",
    "gradient accumulation",
    "static",
    "gradients",
    "activation",
    "peak",
    "peak at",
)


def report(plan: Plan | ActingPlan) -> list[str]:
    """Return the lines printed by `r2v plan`, sizes in GiB."""
    header = _training_header(plan) if isinstance(plan, Plan) else _acting_header(plan)
    tables = [line for device in plan.devices for line in (*_role_lines(device), *_phase_lines(device), "")]
    refused = isinstance(plan, Plan) and not plan.fits
    tried = [
        f"tried {other.strategy}: {other.binding.phase.name} needs {gib(other.binding.memory.total)} GiB"
        for other in (plan.tried if isinstance(plan, Plan) else ())
    ]
    helpful = [f"what would fit: {line}" for line in remedies(plan)] if isinstance(plan, Plan) and refused else []
    nothing = ["nothing that was tried would fit: take a smaller model"] if refused and not helpful else []
    return [*header, "", *tables, *tried, verdict(plan), *helpful, *nothing, *(_how_to_ask(plan) if plan.fits else ())]


def verdict(plan: Plan | ActingPlan) -> str:
    """Return a line on whether the plan fits, with its binding phase; for a stage that acts also a remedy."""
    binding, share = plan.binding, plan.job.engine_memory
    needs = f"{binding.phase.name} needs {gib(binding.memory.total)} GiB ({binding.memory.peak_at})"
    available = f"{gib(plan.usable)} of {gib(plan.machine.memory)} GiB are for tensors"
    available += f", the engine has {share:.0%} of the card" if share else ""
    return (
        _training_verdict(plan, needs, available) if isinstance(plan, Plan) else _wave_verdict(plan, needs, available)
    )


def _training_verdict(plan: Plan, needs: str, available: str) -> str:
    if plan.fits:
        return f"fits: {plan.strategy}; {needs}, {available}"
    machine = plan.machine
    return (
        f"does not fit {machine.gpus} x {gib(machine.memory)} GiB with any strategy: the training state of all "
        f"roles is {gib(whole_state(plan.job, plan.critics))} GiB; with the closest one ({plan.strategy}) {needs} "
        f"at a micro-batch of 1, {available}"
    )


def _wave_verdict(plan: ActingPlan, needs: str, available: str) -> str:
    job, memory = plan.job, gib(left_to(plan.job, plan.machine).memory)
    if plan.fits and job.chosen:
        return f"fits in waves of at least {plan.batch} rows, chosen from the free memory: {needs}, {available}"
    if plan.batch == job.batch:
        return f"fits: {needs}, {available}"
    if plan.fits:
        return f"fits with rollout.batch_size={plan.batch} in place of {job.batch}: {needs}, {available}"
    helpful = [words for words, other in smaller(job) if plan_acting(other, plan.machine, plan.lookup).fits]
    remedy = f"what would fit: {'; '.join(helpful)}" if helpful else "take a smaller model, or a larger GPU"
    return f"does not fit {memory} GiB, one row at a time: {needs}, {available}; {remedy}"


def as_json(plan: Plan | ActingPlan) -> dict[str, Any]:
    """Return the report as JSON values, sizes in bytes."""
    values = {
        "fits": plan.fits,
        "verdict": verdict(plan),
        "usable": round(plan.usable),
        "gres": _gres(plan.machine),
        "mem": mem_header(plan.host),
        "devices": [
            {
                "name": device.device.name,
                "roles": {role.name: round(role.state.total) for role in device.device.roles},
                "phases": {phase.phase.name: _phase_json(phase) for phase in device.phases},
            }
            for device in plan.devices
        ],
    }
    if isinstance(plan, ActingPlan):
        return values | {"shared_base": plan.job.shared, "batch": plan.batch}
    return values | {
        "placement": plan.strategy.placement,
        "shards": plan.strategy.shards,
        "checkpointing": plan.strategy.checkpoint,
        "offload": plan.strategy.offload,
        "whole_state": round(whole_state(plan.job, plan.critics)),
        "remedies": [] if plan.fits else remedies(plan),
    }


def _phase_json(planned: PlannedPhase) -> dict[str, Any]:
    memory = planned.memory
    return {
        "batch": planned.phase.batch,
        "micro_batch": planned.micro_batch,
        "static": round(memory.static),
        "gradients": round(memory.gradients),
        "activation": round(memory.activation),
        "total": round(memory.total),
        "peak_at": memory.peak_at,
    }


def _training_header(plan: Plan) -> list[str]:
    job, machine = plan.job, plan.machine
    trained = f"adapters of rank {job.lora_rank}" if job.lora_rank else "all weights"
    base = "nf4" if job.four_bit else f"{job.base_width} bytes each"
    libraries = "CUDA and NCCL" if machine.gpus > 1 else "CUDA"
    return [
        f"{job.stage} of {job.model.name}: {job.model.sizes.parameters / 1e6:,.1f} M parameters ({base}), trains "
        f"{trained}, {job.precision}, {job.optimizer}",
        f"sequences of {job.prompt_tokens} + {job.completion_tokens} tokens, {job.batch} in an update; "
        f"{machine.gpus} x {gib(machine.memory)} GiB, {gib(machine.reserved)} of each for {libraries} (assumed)",
    ]


def _acting_header(plan: ActingPlan) -> list[str]:
    job, machine = plan.job, plan.machine
    base = "nf4" if job.four_bit else f"{job.width} bytes each"
    shared = f"one base, adapters of rank {job.lora_rank}" if job.shared else "a model of its own each"
    most = "at most " if job.chosen else ""
    drawn = "" if job.sampling == "greedy" else f", {job.samples} completions of a prompt, {job.sampling}"
    return [
        f"{job.stage} with {job.model.name}: {job.model.sizes.parameters / 1e6:,.1f} M parameters ({base}); {shared}",
        f"contexts of {job.prompt_tokens} + {job.completion_tokens} tokens, {most}{job.batch} rows at a time{drawn}; "
        f"one GPU of {gib(machine.memory)} GiB, {gib(machine.reserved)} of it for CUDA and "
        f"{gib(left_to(job, machine).prefixes)} for the states of prompts",
    ]


def _role_lines(device: PlannedDevice) -> list[str]:
    """Return the table of the roles on a device."""
    rows: list[tuple[str, ...]] = [(device.device.name, "weights", "gradients", "optimizer", "at step", "state")]
    for role in device.device.roles:
        state = role.state
        sizes = (state.weights, state.gradients, state.optimizer, state.step, state.total)
        rows.append((role.name, *(gib(size) for size in sizes)))
    rows.append(("sum (GiB)", "", "", "", "", gib(sum(role.state.total for role in device.device.roles))))
    return indent(text_table(rows, right=range(1, 6)), "  ").splitlines()


def _phase_lines(device: PlannedDevice) -> list[str]:
    """Return the table of the phases of a device."""
    if not device.phases:
        return []
    rows = [_PHASE_COLUMNS, *(_phase_row(planned) for planned in device.phases)]
    return ["", *indent(text_table(rows, right=range(1, len(_PHASE_COLUMNS) - 1)), "  ").splitlines()]


def _phase_row(planned: PlannedPhase) -> tuple[str, ...]:
    batch, micro_batch, memory = planned.phase.batch, planned.micro_batch, planned.memory
    sizes = (memory.static, memory.gradients, memory.activation, memory.total)
    rounds = str(-(-batch // micro_batch)) if micro_batch else "--"
    return (planned.phase.name, str(batch), str(micro_batch or "none"), rounds, *map(gib, sizes), memory.peak_at)


def _how_to_ask(plan: Plan | ActingPlan) -> list[str]:
    """Return the header of the job, and the overrides that give `train_hierarchical` this strategy; micro-batches and
    checkpointing follow from the same plan."""
    header = f"header: --gres={_gres(plan.machine)} --mem={mem_header(plan.host)}"
    if isinstance(plan, ActingPlan) or plan.job.stage != "hierarchical":
        return [header]
    strategy = plan.strategy
    overrides = [
        f"hierarchical.placement={strategy.placement}",
        *([] if strategy.shards == "none" else [f"hierarchical.shards={strategy.shards}"]),
        *(["hierarchical.offload=true"] if strategy.offload and strategy.placement == "full" else []),
    ]
    return [f"overrides: {' '.join(overrides)}", header]


def _gres(machine: Machine) -> str:
    """Return the value of `--gres`."""
    kind = f"{machine.kind}:" if machine.kind else ""
    return f"gpu:{kind}{machine.gpus}"


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


def stages_as_json(stages: list[PlannedStage]) -> list[dict[str, Any]]:
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
