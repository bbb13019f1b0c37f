"""A plan as a person reads it: bytes per role and per phase, what binds, what a job header should ask for."""

from __future__ import annotations

from typing import Any

from r2v.memory.planner.planner import Plan, Planned, PlannedDevice
from r2v.memory.planner.remedies import remedies
from r2v.memory.planner.roles import whole_state
from r2v.memory.sizes import gib, mem_header


def page(plan: Plan) -> list[str]:
    """The whole answer of `r2v plan`."""
    lines = [*_head(plan), ""]
    for device in plan.devices:
        lines += [*_roles(device), *_phases(plan, device), ""]
    return lines + (_fits(plan) if plan.fits else _refused(plan))


def verdict(plan: Plan) -> str:
    """One line: whether it fits, and the phase that decides."""
    one, machine = plan.binding, plan.machine
    asks = f"{one.phase.name} needs {gib(one.need.total)} GiB ({one.need.where})"
    have = f"{gib(machine.usable)} of {gib(machine.memory)} GiB are for tensors"
    if plan.fits:
        return f"fits: {plan.setting}; {asks}, {have}"
    return (
        f"does not fit {machine.gpus} x {gib(machine.memory)} GiB in any way tried: the training state of all "
        f"roles is {gib(whole_state(plan.work))} GiB; in the way that lacks least ({plan.setting}) {asks} with 1 "
        f"row at a time, {have}"
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """The same for a program; sizes in bytes."""
    return {
        "fits": plan.fits,
        "verdict": verdict(plan),
        "placement": plan.setting.placement,
        "shards": plan.setting.shards,
        "checkpointing": plan.setting.checkpoint,
        "offload": plan.setting.offload,
        "chunk": plan.setting.chunk,
        "whole_state": round(whole_state(plan.work)),
        "usable": round(plan.machine.usable),
        "gres": _gres(plan),
        "mem": mem_header(plan.host),
        "devices": [
            {
                "name": device.device.name,
                "roles": {role.name: round(role.state.total) for role in device.device.roles},
                "phases": {
                    one.phase.name: {
                        "rows": one.rows,
                        "of": one.phase.rows,
                        "resting": round(one.need.resting),
                        "gradients": round(one.need.gradients),
                        "working": round(one.need.working),
                        "total": round(one.need.total),
                        "where": one.need.where,
                    }
                    for one in device.phases
                },
            }
            for device in plan.devices
        ],
        "remedies": [] if plan.fits else remedies(plan),
    }


def _head(plan: Plan) -> list[str]:
    work, machine = plan.work, plan.machine
    trains = f"adapters of rank {work.lora_rank}" if work.lora_rank else "all weights"
    base = "nf4" if work.four_bit else f"{work.base_width} bytes each"
    return [
        f"{work.stage} of {work.model.name}: {work.model.parameters / 1e6:,.1f} M parameters ({base}), trains "
        f"{trains}, {work.precision}, {work.optimizer}",
        f"rows of {work.prompt_tokens} + {work.completion_tokens} tokens, {work.batch} rows an update; "
        f"{machine.gpus} x {gib(machine.memory)} GiB, {gib(machine.reserved)} of each for CUDA"
        f"{' and NCCL' if machine.gpus > 1 else ''} (assumed)",
    ]


def _roles(device: PlannedDevice) -> list[str]:
    rows: list[tuple[str, ...]] = [(device.device.name, "weights", "gradients", "optimizer", "at step", "state")]
    for role in device.device.roles:
        state = role.state
        rows.append(
            (
                role.name,
                *(gib(size) for size in (state.weights, state.gradients, state.optimizer, state.step, state.total)),
            )
        )
    rows.append(("sum (GiB)", "", "", "", "", gib(sum(role.state.total for role in device.device.roles))))
    return _table(rows)


def _phases(plan: Plan, device: PlannedDevice) -> list[str]:
    if not device.phases:
        return []
    rows: list[tuple[str, ...]] = [
        ("phase", "rows", "updates in", "resting", "gradients", "working", "peak", "worst moment")
    ]
    rows += [
        (
            one.phase.name,
            str(one.rows or "none"),
            _steps(one),
            gib(one.need.resting),
            gib(one.need.gradients),
            gib(one.need.working),
            gib(one.need.total),
            one.need.where,
        )
        for one in device.phases
    ]
    return ["", *_table(rows)]


def _steps(one: Planned) -> str:
    if not one.rows:
        return f"-- of {one.phase.rows}"
    return f"{-(-one.phase.rows // one.rows)} x of {one.phase.rows}"


def _fits(plan: Plan) -> list[str]:
    return [verdict(plan), *_overrides(plan), f"header: --gres={_gres(plan)} --mem={mem_header(plan.host)}"]


def _overrides(plan: Plan) -> list[str]:
    """What tells `train_hierarchical` to do it this way; rows and checkpointing it finds by the same plan."""
    if plan.work.stage != "hierarchical":
        return []
    setting = plan.setting
    words = [
        f"hierarchical.placement={setting.placement}",
        *([] if setting.shards == "none" else [f"hierarchical.shards={setting.shards}"]),
        *(["hierarchical.offload=true"] if setting.offload and setting.placement == "full" else []),
    ]
    return [f"overrides: {' '.join(words)}"]


def _refused(plan: Plan) -> list[str]:
    found = remedies(plan)
    ways = [
        f"tried {one.setting}: {one.binding.phase.name} needs {gib(one.binding.need.total)} GiB" for one in plan.tried
    ]
    return [
        *ways,
        verdict(plan),
        *([f"what would fit: {line}" for line in found] or ["nothing that was tried would fit: take a smaller model"]),
    ]


def _gres(plan: Plan) -> str:
    kind = f"{plan.machine.kind}:" if plan.machine.kind else ""
    return f"gpu:{kind}{plan.machine.gpus}"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Words to the left, numbers to the right, the last column ragged."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(word.rjust(width) for word, width in zip(row[1:-1], widths[1:-1], strict=True)),
        ]
        number = rows[-1][-1].replace(".", "").isdigit()
        cells.append(row[-1].rjust(widths[-1]) if number else row[-1])
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines
