"""Remedies for a plan that does not fit: changes of the job or machine whose plans fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from r2v.memory.planner.phases import Lookup
from r2v.memory.planner.planner import Plan, plan
from r2v.memory.planner.training_job import Machine, TrainingJob
from r2v.memory.sizes import GIB, gib
from r2v.memory.store import NotMeasuredError, UnmeasurableError

_LARGER_GPUS = (80, 96, 141)
"""Memory of larger GPUs in GiB: A100/H100, H20, H200."""


def remedies(refused: Plan) -> list[str]:
    """Return one line per remedy, the cheapest first; two changes at once if no single one helps; empty if none
    does."""
    job, machine = refused.job, refused.machine
    return _that_fit(_single_changes(job, machine), refused.lookup) or _that_fit(
        _double_changes(job, machine), refused.lookup
    )


def _that_fit(changes: Iterator[tuple[str, TrainingJob, Machine]], lookup: Lookup) -> list[str]:
    lines = []
    for description, job, machine in changes:
        try:
            changed = plan(job, machine, lookup)
        except (NotMeasuredError, UnmeasurableError):  # such as the experts of a mixture in float32
            continue
        if changed.fits:
            lines.append(f"{description}: {gib(changed.binding.memory.total)} GiB at most ({changed.strategy})")
    return lines


def _double_changes(job: TrainingJob, machine: Machine) -> Iterator[tuple[str, TrainingJob, Machine]]:
    packed = replace(job, lora_rank=job.lora_rank or 16, precision="mixed", four_bit=True)
    rank = "" if job.lora_rank else " policy.lora_r=16"
    for size in _LARGER_GPUS:
        if size * GIB > machine.memory:
            yield (
                f"a 4-bit base on a GPU of {size} GiB (--gpu {size}GiB --overrides policy.load_in_4bit=true{rank})",
                packed,
                replace(machine, memory=size * GIB),
            )


def _single_changes(job: TrainingJob, machine: Machine) -> Iterator[tuple[str, TrainingJob, Machine]]:
    if job.lora_rank == 0:
        adapters = replace(job, lora_rank=16, precision="mixed")
        yield "adapters on a frozen base (policy.lora_r=16)", adapters, machine
        yield (
            "adapters on a 4-bit base (policy.lora_r=16 policy.load_in_4bit=true)",
            replace(adapters, four_bit=True),
            machine,
        )
    elif not job.four_bit:
        yield "a 4-bit base (policy.load_in_4bit=true)", replace(job, four_bit=True), machine
    if job.optimizer == "adamw" and job.stage == "hierarchical":
        fused = replace(job, optimizer="adamw_fused")
        yield "an optimizer without temporaries (hierarchical.optimizer=adamw_fused)", fused, machine
    elif job.optimizer == "adamw":
        eight = replace(job, optimizer="adamw_8bit")
        yield "8-bit moments (training.optimizer=adamw_8bit)", eight, machine
    prompt, completion = -(-job.prompt_tokens // 2), -(-job.completion_tokens // 2)
    keys = (
        f"policy.max_seq_len={prompt} hierarchical.answer_tokens={completion}"
        if job.stage == "hierarchical"
        else f"policy.max_seq_len={prompt + completion}"
    )
    yield (
        f"half the length ({keys})",
        replace(job, prompt_tokens=prompt, completion_tokens=completion),
        machine,
    )
    for gpus in (4, 8):
        if gpus > machine.gpus:
            yield f"{gpus} of these GPUs (--gpus {gpus})", job, replace(machine, gpus=gpus)
    for size in _LARGER_GPUS:
        if size * GIB > machine.memory:
            yield f"a GPU of {size} GiB (--gpu {size}GiB)", job, replace(machine, memory=size * GIB)
