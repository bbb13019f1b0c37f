"""Report of the plan of a stage that acts: who is in memory, the peak of each phase, the wave that fits."""

from __future__ import annotations

from typing import Any

from r2v.memory.planner.acting import ActingPlan, left_to, plan_acting, smaller
from r2v.memory.report import gres, phase_json, phase_lines, role_lines
from r2v.memory.sizes import gib, mem_header


def acting_report(plan: ActingPlan) -> list[str]:
    """The lines that `r2v plan --stage evaluate` prints. Sizes in GiB."""
    job, machine = plan.job, plan.machine
    base = "nf4" if job.four_bit else f"{job.width} bytes each"
    shared = f"one base, adapters of rank {job.lora_rank}" if job.shared else "a model of its own each"
    drawn = "" if job.sampling == "greedy" else f", {job.samples} completions of a prompt, {job.sampling}"
    lines = [
        f"{job.stage} with {job.model.name}: {job.model.sizes.parameters / 1e6:,.1f} M parameters ({base}); {shared}",
        f"contexts of {job.prompt_tokens} + {job.completion_tokens} tokens, {job.batch} rows at a time{drawn}; one GPU "
        f"of {gib(machine.memory)} GiB, {gib(machine.reserved)} of it for CUDA and "
        f"{gib(left_to(job, machine).prefixes)} for the states of prompts",
        "",
        *role_lines(plan.device),
        *phase_lines(plan.device),
        "",
        acting_verdict(plan),
    ]
    return [*lines, f"header: --gres={gres(machine)} --mem={mem_header(plan.host)}"] if plan.fits else lines


def acting_verdict(plan: ActingPlan) -> str:
    """One line: whether it fits, with which wave, and what would."""
    binding, job, machine = plan.binding, plan.job, left_to(plan.job, plan.machine)
    available = f"{gib(machine.usable)} of {gib(machine.memory)} GiB are for tensors"
    available += f", the engine has {job.engine_memory:.0%} of the card" if job.engine_memory else ""
    needs = f"{binding.phase.name} needs {gib(binding.memory.total)} GiB ({binding.memory.peak_at})"
    if plan.batch == job.batch:
        return f"fits: {needs}, {available}"
    if plan.fits:
        return f"fits with rollout.batch_size={plan.batch} in place of {job.batch}: {needs}, {available}"
    helpful = [words for words, other in smaller(job) if plan_acting(other, plan.machine, plan.lookup).fits]
    remedy = f"what would fit: {'; '.join(helpful)}" if helpful else "take a smaller model, or a larger GPU"
    return f"does not fit {gib(machine.memory)} GiB, one row at a time: {needs}, {available}; {remedy}"


def acting_json(plan: ActingPlan) -> dict[str, Any]:
    """The report as JSON values; sizes in bytes."""
    return {
        "fits": plan.fits,
        "verdict": acting_verdict(plan),
        "shared_base": plan.job.shared,
        "batch": plan.batch,
        "usable": round(left_to(plan.job, plan.machine).usable),
        "gres": gres(plan.machine),
        "mem": mem_header(plan.host),
        "roles": {role.name: round(role.state.total) for role in plan.device.device.roles},
        "phases": {planned.phase.name: phase_json(planned) for planned in plan.phases},
    }
