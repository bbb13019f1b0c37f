"""Memory planner: the first training strategy that fits a GPU, with its largest micro-batches, or a refusal.

Strategies are tried in order, the fastest first; in each, every phase gets the largest micro-batch that fits, found by
bisection on the measurements of its code (`phases`). The batch of an update never changes: micro-batches are
accumulated. The plan is a pure function of its arguments and the measurements, so all ranks compute the same plan
without communication.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from r2v.errors import UsageError
from r2v.memory.planner.phases import Lookup, PhaseMemory, critic_parameters, phase_memory
from r2v.memory.planner.roles import Device, MemoryPhase, devices
from r2v.memory.planner.state import Shards
from r2v.memory.planner.training_job import Machine, Placement, Strategy, TrainingJob, strategies
from r2v.memory.sizes import GIB, gib
from r2v.memory.store import NotMeasuredError, UnmeasurableError
from r2v.memory.store import measurement as stored

LARGE_ENOUGH = 4
"""Micro-batch below which slower strategies are tried."""
PROCESS = 4 * GIB
"""Assumed CPU memory of a Python process with torch and CUDA loaded."""


@dataclass(frozen=True, kw_only=True)
class PlannedPhase:
    """Phase with the largest micro-batch that fits, in sequences; 0 if not even one fits, with the `memory` of one."""

    phase: MemoryPhase
    micro_batch: int
    memory: PhaseMemory


@dataclass(frozen=True, kw_only=True)
class PlannedDevice:
    """Device with its planned phases."""

    device: Device
    phases: tuple[PlannedPhase, ...]

    @property
    def static(self) -> float:
        """Persistent bytes: weights and optimizers."""
        return sum(role.state.static for role in self.device.roles)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a strategy for a job on a machine, which may not fit."""

    job: TrainingJob
    machine: Machine
    strategy: Strategy
    devices: tuple[PlannedDevice, ...]
    critics: Mapping[str, int]
    """Parameters of the double critic and of the value model."""
    lookup: Lookup = field(compare=False, repr=False)
    tried: tuple[Plan, ...] = ()
    """All strategies if none fits, else empty."""

    @property
    def phases(self) -> tuple[PlannedPhase, ...]:
        """Phases of all devices."""
        return tuple(planned for device in self.devices for planned in device.phases)

    @property
    def usable(self) -> float:
        """Bytes of each GPU for the tensors of this job, without a serving engine's share."""
        return _usable(self.job, self.machine)

    @property
    def fits(self) -> bool:
        """True if every phase fits with a micro-batch of at least 1."""
        return all(planned.micro_batch for planned in self.phases)

    @property
    def binding(self) -> PlannedPhase:
        """The phase with the highest peak, among those that do not fit if any."""
        refused = [planned for planned in self.phases if not planned.micro_batch]
        return max(refused or self.phases, key=lambda planned: planned.memory.total)

    @property
    def host(self) -> float:
        """CPU memory of the node in bytes: a process per GPU with the loaded weights, offloaded roles, replay."""
        loaded = self.job.model.sizes.parameters * (2 if self.job.four_bit else self.job.base_width)
        offloaded = sum(device.static for device in self.devices if device.device.name == "cpu")
        # 16 bytes a token: an assumption.
        replay = self.job.replay * self.job.tokens * 16 if self.job.stage == "hierarchical" else 0
        return self.machine.gpus * (PROCESS + loaded) + offloaded + replay

    def phase(self, name: str) -> tuple[PlannedDevice, PlannedPhase]:
        """Return the device and the phase of a name. Raise KeyError."""
        by_name = {planned.phase.name: (device, planned) for device in self.devices for planned in device.phases}
        return by_name[name]


def plan(
    job: TrainingJob,
    machine: Machine,
    lookup: Lookup = stored,
    *,
    placement: Placement | None = None,
    shards: Shards | None = None,
    checkpoint: bool | None = None,
    offload: bool | None = None,
) -> Plan:
    """Return the first strategy that fits with large enough micro-batches, else the one with the largest, else the one
    closest to fitting, refused. Arguments that are not None restrict the strategies. Raise UsageError if they
    contradict each other, and as `lookup` does."""
    tried = []
    for strategy in strategies(
        job, machine.gpus, placement=placement, shards=shards, checkpoint=checkpoint, offload=offload
    ):
        tried.append(plan_strategy(job, machine, strategy, lookup))
        if tried[-1].fits and all(_large_enough(planned) for planned in tried[-1].phases):
            return tried[-1]
    if not tried:
        raise UsageError(
            f"no way to place {job.stage} with placement {placement}, shards {shards}, offload {offload}; leave one out"
        )
    fitting = [candidate for candidate in tried if candidate.fits]
    if fitting:
        return max(fitting, key=_smallest_share)
    closest = min(tried, key=lambda candidate: candidate.binding.memory.total)
    return replace(closest, tried=tuple(tried))


def _usable(job: TrainingJob, machine: Machine) -> float:
    """Return the bytes of each GPU for the tensors of a job."""
    return machine.usable - job.engine_memory * machine.memory


def _smallest_share(plan: Plan) -> float:
    """Return the smallest micro-batch of any phase as a share of its batch."""
    return min(planned.micro_batch / planned.phase.batch for planned in plan.phases)


def plan_strategy(job: TrainingJob, machine: Machine, strategy: Strategy, lookup: Lookup = stored) -> Plan:
    """Return the plan of one strategy with the largest micro-batches."""
    critics = critic_parameters(job, lookup)
    planned = tuple(
        PlannedDevice(
            device=device,
            phases=tuple(_largest_micro_batch(job, machine, strategy, device, p, lookup) for p in device.phases),
        )
        for device in devices(job, strategy, machine.gpus, critics)
    )
    return Plan(job=job, machine=machine, strategy=strategy, devices=planned, critics=critics, lookup=lookup)


def _large_enough(planned: PlannedPhase) -> bool:
    return planned.micro_batch >= min(LARGE_ENOUGH, planned.phase.batch)


def _largest_micro_batch(
    job: TrainingJob, machine: Machine, strategy: Strategy, device: Device, phase: MemoryPhase, lookup: Lookup
) -> PlannedPhase:
    def peak(micro_batch: int) -> PhaseMemory:
        memory = phase_memory(job, strategy, device, phase, micro_batch, lookup)
        return memory.corrected(machine.factors.get(phase.name, 1.0))

    def fits(micro_batch: int) -> bool:
        return peak(micro_batch).reserved(machine) <= _usable(job, machine)

    micro_batch = largest(phase.batch, fits)
    return PlannedPhase(phase=phase, micro_batch=micro_batch, memory=peak(max(1, micro_batch)))


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number of rows up to `most` that fits, by bisection, as memory grows with the rows; 0 if none
    does."""
    if not fits(1):
        return 0
    return most if fits(most) else bisect_left(range(1, most), True, key=lambda rows: not fits(rows))


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
