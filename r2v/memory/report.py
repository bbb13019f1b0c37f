"""Report of a memory plan: bytes per role and per phase, the phase that decides, and the job header to ask with."""

from __future__ import annotations

from typing import Any

from r2v.console import text_table
from r2v.memory.planner.planner import Plan, PlannedDevice, PlannedPhase
from r2v.memory.planner.remedies import remedies
from r2v.memory.planner.roles import whole_state
from r2v.memory.planner.training_job import Machine
from r2v.memory.sizes import gib, mem_header

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


def report(plan: Plan) -> list[str]:
    """The lines that `r2v plan` prints. Sizes in GiB."""
    lines = [*_header(plan), ""]
    for device in plan.devices:
        lines += [*role_lines(device), *phase_lines(device), ""]
    return lines + (_accepted(plan) if plan.fits else _refused(plan))


def verdict(plan: Plan) -> str:
    """One line: whether the plan fits, and the phase that decides."""
    binding, machine = plan.binding, plan.machine
    required = f"{binding.phase.name} needs {gib(binding.memory.total)} GiB ({binding.memory.peak_at})"
    available = f"{gib(plan.usable)} of {gib(machine.memory)} GiB are for tensors"
    available += f", the engine has {plan.job.engine_memory:.0%} of the card" if plan.job.engine_memory else ""
    if plan.fits:
        return f"fits: {plan.strategy}; {required}, {available}"
    return (
        f"does not fit {machine.gpus} x {gib(machine.memory)} GiB with any strategy: the training state of all "
        f"roles is {gib(whole_state(plan.job, plan.critics))} GiB; with the closest one ({plan.strategy}) {required} "
        f"at a micro-batch of 1, {available}"
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """The report as JSON values; sizes in bytes."""
    return {
        "fits": plan.fits,
        "verdict": verdict(plan),
        "placement": plan.strategy.placement,
        "shards": plan.strategy.shards,
        "checkpointing": plan.strategy.checkpoint,
        "offload": plan.strategy.offload,
        "whole_state": round(whole_state(plan.job, plan.critics)),
        "usable": round(plan.usable),
        "gres": gres(plan.machine),
        "mem": mem_header(plan.host),
        "devices": [
            {
                "name": device.device.name,
                "roles": {role.name: round(role.state.total) for role in device.device.roles},
                "phases": {phase.phase.name: phase_json(phase) for phase in device.phases},
            }
            for device in plan.devices
        ],
        "remedies": [] if plan.fits else remedies(plan),
    }


def phase_json(planned: PlannedPhase) -> dict[str, Any]:
    """A phase as JSON values."""
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


def _header(plan: Plan) -> list[str]:
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


def role_lines(device: PlannedDevice) -> list[str]:
    """The table of the roles on a device."""
    rows: list[tuple[str, ...]] = [(device.device.name, "weights", "gradients", "optimizer", "at step", "state")]
    for role in device.device.roles:
        state = role.state
        sizes = (state.weights, state.gradients, state.optimizer, state.step, state.total)
        rows.append((role.name, *(gib(size) for size in sizes)))
    rows.append(("sum (GiB)", "", "", "", "", gib(sum(role.state.total for role in device.device.roles))))
    return _indented(text_table(rows, right=range(1, 6)))


def phase_lines(device: PlannedDevice) -> list[str]:
    """The table of the phases of a device."""
    if not device.phases:
        return []
    rows = [_PHASE_COLUMNS, *(_phase_row(planned) for planned in device.phases)]
    return ["", *_indented(text_table(rows, right=range(1, len(_PHASE_COLUMNS) - 1)))]


def _phase_row(planned: PlannedPhase) -> tuple[str, ...]:
    batch, micro_batch, memory = planned.phase.batch, planned.micro_batch, planned.memory
    return (
        planned.phase.name,
        str(batch),
        str(micro_batch or "none"),
        str(-(-batch // micro_batch)) if micro_batch else "--",
        gib(memory.static),
        gib(memory.gradients),
        gib(memory.activation),
        gib(memory.total),
        memory.peak_at,
    )


def _indented(table: str) -> list[str]:
    return [f"  {line}" for line in table.splitlines()]


def _accepted(plan: Plan) -> list[str]:
    return [verdict(plan), *_overrides(plan), f"header: --gres={gres(plan.machine)} --mem={mem_header(plan.host)}"]


def _overrides(plan: Plan) -> list[str]:
    """The overrides that give `train_hierarchical` this strategy; it finds micro-batches and checkpointing itself, by
    the same plan."""
    if plan.job.stage != "hierarchical":
        return []
    strategy = plan.strategy
    overrides = [
        f"hierarchical.placement={strategy.placement}",
        *([] if strategy.shards == "none" else [f"hierarchical.shards={strategy.shards}"]),
        *(["hierarchical.offload=true"] if strategy.offload and strategy.placement == "full" else []),
    ]
    return [f"overrides: {' '.join(overrides)}"]


def _refused(plan: Plan) -> list[str]:
    tried = [
        f"tried {other.strategy}: {other.binding.phase.name} needs {gib(other.binding.memory.total)} GiB"
        for other in plan.tried
    ]
    helpful = [f"what would fit: {line}" for line in remedies(plan)]
    return [*tried, verdict(plan), *(helpful or ["nothing that was tried would fit: take a smaller model"])]


def gres(machine: Machine) -> str:
    """The GPUs as `--gres` takes them."""
    kind = f"{machine.kind}:" if machine.kind else ""
    return f"gpu:{kind}{machine.gpus}"
