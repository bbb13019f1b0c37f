"""Plan of stages that act: models in memory, and peaks while they generate and score actions.

With adapters, one frozen base serves all models: the policy, its variants, the verifier and each of its folds cost one
adapter each. With whole weights each is a separate model.

    generate      a wave of prompts is read at once, then all rows are extended token by token: KV cache at its longest,
                  the logits, and their float64 copies for sampling
    score         a verifier reads contexts with their actions at once
    both at once  policy and verifiers run in separate threads. On a shared base their passes take turns, and their
                  memory between passes adds up; separate models run concurrently

The plan is for a GPU: one pass for all prompts, caches that grow by concatenation, no state between waves. (A CPU reads
prompts in groups and keeps up to 256 MiB of each model's earlier prompts.) With a serving engine, which has its share
of the GPU, the rest is planned as if the policy were in this process: the verifier and its base are, so the plan errs
on the large side.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from r2v.memory.measurement import MeasuredCase, MeasuredMemory, Peak
from r2v.memory.models import KnownModel
from r2v.memory.planner.phases import Lookup, PhaseMemory, generation_peak
from r2v.memory.planner.planner import PROCESS, PlannedDevice, PlannedPhase, largest
from r2v.memory.planner.roles import Device, MemoryPhase, ModelRole
from r2v.memory.planner.state import RoleMemory, frozen
from r2v.memory.planner.training_job import Machine
from r2v.memory.sizes import prefix_states
from r2v.memory.store import measurement as stored

Sampling = Literal["greedy", "sampled", "nucleus"]
MOST_ROWS = 512
"""Largest wave that is chosen from the free memory: beyond it a wave of these models is bound by arithmetic."""
FREE_SHARE = 0.5
"""Share of the free memory for such a wave: a policy and a verifier each choose theirs and compute at the same time."""


@dataclass(frozen=True, kw_only=True)
class ActingJob:
    """Stage that plays episodes with a local model: all settings that decide its memory."""

    stage: str
    code: str
    """Dotted path of the function that runs a wave, from the stage's row in JOBS."""
    model: KnownModel
    actors: tuple[str, ...]
    """Names of the policies; `slm_base` is the base itself."""
    verifiers: tuple[str, ...]
    """Names of the verifiers: one, or one per fold."""
    lora_rank: int
    width: int
    """Bytes per weight, except packed ones."""
    four_bit: bool = False
    batch: int = 64
    """Completions at a time (rollout.batch_size), at most."""
    chosen: bool = False
    """True if they are chosen from the free memory."""
    prompt_tokens: int = 616
    completion_tokens: int = 24
    samples: int = 1
    """Completions of one prompt."""
    sampling: Sampling = "greedy"
    engine_memory: float = 0.0
    """Share of the GPU's memory used by a serving engine; the plan has the rest."""

    @property
    def tokens(self) -> int:
        """Tokens of a context with its action."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def shared(self) -> bool:
        """True if one base serves all models."""
        return self.lora_rank > 0

    @property
    def adapter_width(self) -> int:
        """Bytes per adapter weight: peft keeps them at least in float32, on any base."""
        return max(4, self.width)


@dataclass(frozen=True, kw_only=True)
class ActingPlan:
    """Plan of a job on a GPU: its roles, and the largest wave of each phase."""

    job: ActingJob
    machine: Machine
    devices: tuple[PlannedDevice, ...]
    """The single GPU."""
    lookup: Lookup = field(compare=False, repr=False)

    @property
    def phases(self) -> tuple[PlannedPhase, ...]:
        """Phases of the GPU."""
        return self.devices[0].phases

    @property
    def usable(self) -> float:
        """Bytes of the GPU for tensors."""
        return left_to(self.job, self.machine).usable

    @property
    def fits(self) -> bool:
        """True if at least one row at a time fits in each phase."""
        return all(planned.micro_batch for planned in self.phases)

    @property
    def batch(self) -> int:
        """The largest rollout.batch_size that fits, up to the configured one."""
        return min(planned.micro_batch for planned in self.phases)

    @property
    def binding(self) -> PlannedPhase:
        """The phase with the highest peak in waves of `batch` rows (of one if none fits)."""
        rows = max(1, self.batch)
        waves = [replace(p, memory=acting_memory(self.job, p.phase.name, rows, self.lookup)) for p in self.phases]
        return max(waves, key=lambda planned: planned.memory.total)

    @property
    def host(self) -> float:
        """CPU memory in bytes: a process, and the weights while they are loaded."""
        return PROCESS + self.job.model.sizes.parameters * self.job.width


def left_to(job: ActingJob, machine: Machine) -> Machine:
    """Return the machine without the memory of a serving engine and of the models' prefix caches."""
    models = len(job.verifiers) + (0 if job.engine_memory else len(job.actors))
    memory = machine.memory * (1 - job.engine_memory) if job.engine_memory else machine.memory
    return replace(machine, memory=memory, prefixes=models * prefix_states(machine.memory))


def plan_acting(job: ActingJob, machine: Machine, lookup: Lookup = stored) -> ActingPlan:
    """Return the plan with the largest waves, up to `job.batch`, that fit one GPU. Raise as `lookup` does."""
    left = left_to(job, machine)
    names = ("generate", *(("score", "both at once") if job.verifiers else ()))
    phases = tuple(
        MemoryPhase(
            name=name,
            role="policy",
            action="generate" if name == "generate" else "read",
            batch=job.batch,
            tokens=job.tokens,
        )
        for name in names
    )
    device = Device(name="gpu 0", roles=roles(job), phases=phases)
    return ActingPlan(
        job=job,
        machine=machine,
        devices=(PlannedDevice(device=device, phases=tuple(_largest(job, left, phase, lookup) for phase in phases)),),
        lookup=lookup,
    )


def roles(job: ActingJob) -> tuple[ModelRole, ...]:
    """Return all persistent weights on the GPU: one base and an adapter each, or a model each."""
    sizes = job.model.sizes
    weights = frozen(sizes, job.width, four_bit=job.four_bit).weights
    if not job.shared:
        core = weights - sizes.head * job.width
        own = [(name, weights) for name in job.actors] + [(name, core) for name in job.verifiers]
        return tuple(ModelRole(name=name, state=RoleMemory(weights=size)) for name, size in own)
    adapter = job.lora_rank * sizes.adapters * job.adapter_width
    named = [(name, adapter) for name in (*job.actors, *job.verifiers) if name != "slm_base"]
    return tuple(ModelRole(name=name, state=RoleMemory(weights=size)) for name, size in [("base", weights), *named])


def acting_memory(job: ActingJob, phase: str, rows: int, lookup: Lookup = stored) -> PhaseMemory:
    """Return the peak of a phase with `rows` rows at a time."""
    static = sum(role.state.static for role in roles(job))
    peak = {"generate": _generating, "score": _scoring, "both at once": _both}[phase](job, rows, lookup)
    return PhaseMemory(static=static, gradients=0, activation=peak.size, peak_at=peak.at)


def rows_within(job: ActingJob, machine: Machine, phase: str, room: float, lookup: Lookup = stored) -> int:
    """Return the largest wave, up to `job.batch` rows, that fits in `room` bytes beside the weights; 0 if none does."""
    share = FREE_SHARE if job.chosen and phase != "both at once" else 1.0

    def fits(rows: int) -> bool:
        memory = acting_memory(job, phase, rows, lookup)
        return memory.reserved(machine) - memory.static <= room * (share if rows > 1 else 1.0)

    return largest(job.batch, fits)


def _largest(job: ActingJob, machine: Machine, phase: MemoryPhase, lookup: Lookup) -> PlannedPhase:
    static = sum(role.state.static for role in roles(job))
    rows = rows_within(job, machine, phase.name, machine.usable - static, lookup)
    return PlannedPhase(phase=phase, micro_batch=rows, memory=acting_memory(job, phase.name, max(1, rows), lookup))


def _measured(job: ActingJob, action: Literal["generate", "read"], lookup: Lookup) -> MeasuredMemory:
    window = job.model.window
    case = MeasuredCase(
        code=job.code,
        action=action,
        model=job.model.values,
        rank=job.lora_rank,
        frozen=True,
        width=job.width,
        adapter_width=job.adapter_width,
        four_bit=job.four_bit,
        sampling=job.sampling if action == "generate" else "greedy",
        beyond_window=window is not None and job.tokens > window,
    )
    return lookup(case)


def _generating(job: ActingJob, rows: int, lookup: Lookup) -> Peak:
    measured = _measured(job, "generate", lookup)
    return generation_peak(measured, rows, job.prompt_tokens, job.completion_tokens, min(job.samples, rows))


def _scoring(job: ActingJob, rows: int, lookup: Lookup) -> Peak:
    return _measured(job, "read", lookup).peak(("read",), rows=rows, tokens=job.tokens)


def _both(job: ActingJob, rows: int, lookup: Lookup) -> Peak:
    generate, score, count = _generating(job, rows, lookup), _scoring(job, rows, lookup), len(job.verifiers)
    if not job.shared:
        return Peak(size=generate.size + count * score.size, at="concurrent passes")
    held = _measured(job, "read", lookup).peak(("held",), rows=rows, tokens=job.tokens).size
    between = _measured(job, "generate", lookup).peak(("choose", "last choose"), rows=rows, tokens=job.tokens).size
    peaks = (
        Peak(size=between + score.size + (count - 1) * held, at=f"score, {score.at}, while sampling"),
        Peak(size=generate.size + count * held, at=f"generate, {generate.at}, while scores are held"),
    )
    return max(peaks, key=lambda peak: peak.size)


def smaller(job: ActingJob) -> tuple[tuple[str, ActingJob], ...]:
    """Return (description with its override, changed job) of each change that needs less memory, the cheapest first."""
    changes = []
    if not job.shared:
        changes.append(("adapters on one base (policy.lora_r=16)", replace(job, lora_rank=16)))
    if not job.four_bit and job.shared:
        changes.append(("a 4-bit base (policy.load_in_4bit=true)", replace(job, four_bit=True)))
    half = replace(job, prompt_tokens=-(-job.prompt_tokens // 2))
    changes.append((f"half the context (policy.max_seq_len={half.tokens})", half))
    return tuple(changes)
