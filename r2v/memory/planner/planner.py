"""Which way of training fits a GPU, and how many rows at a time: the largest micro-batches, or a refusal.

    plan(work, Machine(memory=parse_size("44.53GiB"), gpus=2))

Ways are tried in order, the fastest first; in each, every phase gets the most rows at a time that fit, found by
bisection on the arithmetic of `phases`. The batch of an update is never changed: what does not fit at once is
accumulated. The answer is a function of its arguments, so every rank comes to the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from r2v.errors import UsageError
from r2v.memory.planner.phases import Need, need
from r2v.memory.planner.roles import Device, Phase, devices
from r2v.memory.planner.state import Shards
from r2v.memory.planner.work import Machine, Placement, Setting, Work, settings
from r2v.memory.sizes import GIB

ENOUGH = 4
"""Rows at a time below which a slower way that allows more is tried."""
_PROCESS = 4 * GIB
"""CPU memory of a Python process with torch and CUDA loaded: an assumption."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A phase with the rows that it takes at a time; 0 where not even one fits, `need` then being that of one."""

    phase: Phase
    rows: int
    need: Need


@dataclass(frozen=True, kw_only=True)
class PlannedDevice:
    """A device and its phases."""

    device: Device
    phases: tuple[Planned, ...]

    @property
    def resting(self) -> float:
        """Bytes that stand there all the time."""
        return sum(role.state.resting for role in self.device.roles)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A way of doing the work on a machine, and whether it fits."""

    work: Work
    machine: Machine
    setting: Setting
    devices: tuple[PlannedDevice, ...]
    tried: tuple[Plan, ...] = ()
    """Every way, where none fits."""

    @property
    def phases(self) -> tuple[Planned, ...]:
        """Of all devices."""
        return tuple(one for device in self.devices for one in device.phases)

    @property
    def fits(self) -> bool:
        """Whether every phase can take a row at least."""
        return all(one.rows for one in self.phases)

    @property
    def binding(self) -> Planned:
        """The phase that asks for most (of those that do not fit, where there are such)."""
        refused = [one for one in self.phases if not one.rows]
        return max(refused or self.phases, key=lambda one: one.need.total)

    @property
    def host(self) -> float:
        """CPU memory of the node: a process for each GPU and the weights it loads, roles that stand there, replay."""
        loaded = self.work.model.parameters * (2 if self.work.four_bit else self.work.base_width)
        aside = sum(device.resting for device in self.devices if device.device.name == "cpu")
        turns = self.work.replay * self.work.tokens * 16 if self.work.stage == "hierarchical" else 0
        return self.machine.gpus * (_PROCESS + loaded) + aside + turns

    def rows(self, phase: str) -> int:
        """Rows at a time of a phase by name. Raises KeyError."""
        return {one.phase.name: one.rows for one in self.phases}[phase]


def plan(
    work: Work,
    machine: Machine,
    *,
    placement: Placement | None = None,
    shards: Shards | None = None,
    checkpoint: bool | None = None,
    offload: bool | None = None,
) -> Plan:
    """The first way that fits with a few rows at a time; else the one that fits with most; else, refused, the one
    that lacks least. What is named is held to. Raises UsageError where the names contradict each other."""
    tried = []
    for setting in settings(
        work, machine.gpus, placement=placement, shards=shards, checkpoint=checkpoint, offload=offload
    ):
        tried.append(in_setting(work, machine, setting))
        if tried[-1].fits and all(_enough(one) for one in tried[-1].phases):
            return tried[-1]
    if not tried:
        raise UsageError(
            f"no way to place {work.stage} with placement {placement}, shards {shards}, offload "
            f"{offload}; leave one out"
        )
    fitting = [one for one in tried if one.fits]
    if fitting:
        return max(fitting, key=lambda one: min(phase.rows / phase.phase.rows for phase in one.phases))
    return replace(min(tried, key=lambda one: one.binding.need.total), tried=tuple(tried))


def in_setting(work: Work, machine: Machine, setting: Setting) -> Plan:
    """The largest micro-batches of one way."""
    found = tuple(
        PlannedDevice(
            device=device, phases=tuple(_most(work, machine, setting, device, phase) for phase in device.phases)
        )
        for device in devices(work, setting, machine.gpus)
    )
    return Plan(work=work, machine=machine, setting=setting, devices=found)


def _enough(one: Planned) -> bool:
    return one.rows >= min(ENOUGH, one.phase.rows)


def _most(work: Work, machine: Machine, setting: Setting, device: Device, phase: Phase) -> Planned:
    def of(rows: int) -> Need:
        return need(work, setting, device, phase, rows).corrected(machine.factors.get(phase.name, 1.0))

    def fits(rows: int) -> bool:
        return of(rows).reserved(machine) <= machine.usable

    if not fits(1):
        return Planned(phase=phase, rows=0, need=of(1))
    low, high = 1, phase.rows + 1
    if fits(phase.rows):
        low = phase.rows
    while high - low > 1 and low < phase.rows:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Planned(phase=phase, rows=low, need=of(low))
