"""What would make a refused plan fit: each change is planned too, and only those that fit are named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from r2v.memory.planner.planner import Plan, plan
from r2v.memory.planner.work import Machine, Work
from r2v.memory.sizes import GIB, gib

_LARGE = (80, 96, 141)
"""GiB of larger GPUs: A100/H100, H20, H200."""


def remedies(refused: Plan) -> list[str]:
    """One line each, the cheapest change first; two changes at once where no single one helps; empty where nothing
    that is tried does."""
    work, machine = refused.work, refused.machine
    return _helping(_changes(work, machine)) or _helping(_pairs(work, machine))


def _helping(changes: Iterator[tuple[str, Work, Machine]]) -> list[str]:
    return [f"{words}: {_told(found)}" for words, work, machine in changes if (found := plan(work, machine)).fits]


def _pairs(work: Work, machine: Machine) -> Iterator[tuple[str, Work, Machine]]:
    packed = replace(work, lora_rank=work.lora_rank or 16, precision="mixed", four_bit=True)
    for size in _LARGE:
        if size * GIB > machine.memory:
            yield (
                f"a 4-bit base on a GPU of {size} GiB (--four-bit --gpu {size}GiB"
                f"{'' if work.lora_rank else ' --lora-r 16'})",
                packed,
                replace(machine, memory=size * GIB),
            )


def _changes(work: Work, machine: Machine) -> Iterator[tuple[str, Work, Machine]]:
    if work.lora_rank == 0:
        yield "adapters on a frozen base (--lora-r 16)", replace(work, lora_rank=16, precision="mixed"), machine
        yield (
            "adapters on a 4-bit base (--lora-r 16 --four-bit)",
            replace(work, lora_rank=16, precision="mixed", four_bit=True),
            machine,
        )
    elif not work.four_bit:
        yield "a 4-bit base (--four-bit)", replace(work, four_bit=True), machine
    if work.optimizer == "adamw":
        yield (
            "an optimizer without temporaries (--optimizer adamw_fused)",
            replace(work, optimizer="adamw_fused"),
            machine,
        )
    half = replace(work, prompt_tokens=-(-work.prompt_tokens // 2), completion_tokens=-(-work.completion_tokens // 2))
    yield f"half the length (--prompt {half.prompt_tokens} --completion {half.completion_tokens})", half, machine
    for gpus in (4, 8):
        if gpus > machine.gpus:
            yield f"{gpus} of these GPUs (--n {gpus})", work, replace(machine, gpus=gpus)
    for size in _LARGE:
        if size * GIB > machine.memory:
            yield f"a GPU of {size} GiB (--gpu {size}GiB)", work, replace(machine, memory=size * GIB)


def _told(found: Plan) -> str:
    return f"{gib(found.binding.need.total)} GiB at most ({found.setting})"
