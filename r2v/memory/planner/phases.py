"""Peak memory of one phase on one GPU as a function of its micro-batch.

peak = static: weights and optimizers of all roles on the GPU
     + gradients: those of the phase's own role, and buffers gathered by its sharding
     + activation: the larger of a micro-batch's activations and the optimizer's temporaries

Activations are measured (`r2v.memory.measurement`); how roles, shards and gathered weights add up is calculated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from r2v.memory.measurement import MeasuredCase, MeasuredMemory, Peak
from r2v.memory.planner.roles import Device, MemoryPhase
from r2v.memory.planner.state import IN_8_BITS, WHOLE_WEIGHTS, RoleMemory
from r2v.memory.planner.training_job import Machine, Strategy, TrainingJob

CHUNK = 256
"""Tokens whose logits exist at once in hierarchical training: .5 GiB in an update with 128,256 words."""
_TILE = 4096
"""Tokens of a tile of TRL's losses."""
Lookup = Callable[[MeasuredCase], MeasuredMemory]
"""Case -> its measurement (`r2v.memory.store.measurement`)."""


@dataclass(frozen=True, kw_only=True)
class PhaseMemory:
    """Bytes of a phase at its peak, by part."""

    static: float
    """Weights and optimizers of every role on the GPU."""
    gradients: float
    """Gradients of the phase's own role, and buffers that its sharding gathers or sends."""
    activation: float
    """Activations, logits and caches of one micro-batch, or the optimizer's temporaries if larger."""
    peak_at: str
    """Operation at the peak, such as "backward, logits"."""

    @property
    def total(self) -> float:
        """Peak as counted by torch.cuda.max_memory_allocated."""
        return self.static + self.gradients + self.activation

    def corrected(self, factor: float) -> PhaseMemory:
        """Return the memory with activation bytes times a probe's factor."""
        return self if factor == 1 else replace(self, activation=self.activation * factor)

    def reserved(self, machine: Machine) -> float:
        """Return the bytes that the allocator reserves: temporary tensors leave gaps."""
        return self.total + self.activation * machine.fragmentation


def critic_parameters(job: TrainingJob, lookup: Lookup) -> dict[str, int]:
    """Return the numbers of parameters of the double critic and the value model, if any, by role."""
    if job.critic is None:
        return {}
    names = ("critic", "value") if job.value else ("critic",)
    return {name: lookup(_critic_case(job, name)).trained for name in names}


def phase_memory(
    job: TrainingJob, strategy: Strategy, device: Device, phase: MemoryPhase, micro_batch: int, lookup: Lookup
) -> PhaseMemory:
    """Return the peak of a phase with `micro_batch` sequences at a time."""
    states = {role.name: role.state for role in device.roles}
    state = states.get(phase.role, RoleMemory())
    static = sum(role.state.static for role in device.roles)
    if phase.action == "load":
        return PhaseMemory(
            static=sum(role.state.weights for role in device.roles),
            gradients=0,
            activation=2 * job.model.sizes.embedding,
            peak_at="embedding, before and after its cast to float32",
        )
    case = case_of(job, strategy, phase, micro_batch)
    measured = lookup(case)
    if phase.action != "train":
        peak = _used(job, phase, measured, micro_batch)
        gathered = state.gathered + _gathered_for_use(job, strategy, phase)
        return PhaseMemory(static=static, gradients=gathered, activation=peak.size, peak_at=peak.at)
    fresh = micro_batch >= phase.batch and state.gathered == 0
    shape = _shape(job, phase, micro_batch)
    peak = measured.peak(("fresh" if fresh else "accumulated",), **shape)
    # Accumulated gradients are live during a micro-batch, unless it is the only one of the update.
    gradients, held = state.gradients + state.gathered, 0 if fresh else state.gradients + state.gathered
    activation = peak.size - (0 if fresh else measured.trained_bytes)
    step = _step(job, strategy, state, measured, shape)
    if held + activation >= gradients + step:
        return PhaseMemory(static=static, gradients=held, activation=activation, peak_at=peak.at)
    return PhaseMemory(static=static, gradients=gradients, activation=step, peak_at="optimizer step")


def case_of(job: TrainingJob, strategy: Strategy, phase: MemoryPhase, micro_batch: int) -> MeasuredCase:
    """Return the case whose measurement applies to a phase, which is not that of loading."""
    action: Any = phase.action
    if phase.role in ("critic", "value"):
        critic = replace(_critic_case(job, phase.role), action=action)
        return replace(critic, fused=phase.action == "train" and job.optimizer == "adamw_fused")
    case = MeasuredCase(code=job.code, action=action, model=job.model.values, **_widths(job, strategy))
    if phase.action == "generate":
        window = job.model.window
        return replace(
            case,
            frozen=job.lora_rank > 0,
            sampling="sampled",
            beyond_window=window is not None and phase.tokens > window,
        )
    hierarchical = job.stage == "hierarchical"
    chunk = {"verifier": 0, "bc": _TILE, "preference": _TILE // 2, "hierarchical": CHUNK}[job.stage]
    case = replace(case, chunk=chunk, completions=hierarchical and job.completion_tokens < phase.tokens)
    case = replace(case, single_chunk=bool(chunk) and _predicted(job, phase, micro_batch) <= chunk)
    if phase.action == "read":  # the reference is the base without adapters, or a frozen copy
        reference = phase.role == "reference"
        return replace(case, rank=0 if reference else job.lora_rank, frozen=reference or job.lora_rank > 0)
    fused, checkpoint = job.optimizer == "adamw_fused", strategy.checkpoint
    return replace(case, frozen=job.lora_rank > 0, fused=fused, checkpoint=checkpoint)


def _critic_case(job: TrainingJob, role: str) -> MeasuredCase:
    assert job.critic is not None
    return MeasuredCase(code=job.code, action="train", role=role, model=job.critic.values)


def _widths(job: TrainingJob, strategy: Strategy) -> dict[str, Any]:
    """Return the widths of a case. TRL and the verifier compute under autocast; so does hierarchical training, but in
    the type of the weights if they are sharded or in 4 bits."""
    whole = strategy.shards in WHOLE_WEIGHTS and not job.four_bit
    return {
        "rank": job.lora_rank,
        "width": job.base_width,
        "adapter_width": job.trained_width,
        "autocast": job.precision == "mixed" and (job.stage != "hierarchical" or whole),
        "four_bit": job.four_bit,
    }


def _predicted(job: TrainingJob, phase: MemoryPhase, micro_batch: int) -> int:
    """Return the number of tokens whose log-probabilities are computed: in hierarchical training only completions."""
    each = min(job.completion_tokens, phase.tokens) if job.stage == "hierarchical" else phase.tokens
    return micro_batch * each


def _shape(job: TrainingJob, phase: MemoryPhase, micro_batch: int) -> dict[str, float]:
    return {"rows": micro_batch, "tokens": phase.tokens, "predicted": _predicted(job, phase, micro_batch)}


def _step(
    job: TrainingJob, strategy: Strategy, state: RoleMemory, measured: MeasuredMemory, shape: Mapping[str, float]
) -> float:
    """Return the optimizer's temporaries: measured, or calculated with shards or 8-bit moments."""
    if strategy.shards != "none" or job.optimizer in IN_8_BITS:
        return state.step
    return max(0.0, measured.peak(("step",), **shape).size - measured.trained_bytes)


def _used(job: TrainingJob, phase: MemoryPhase, measured: MeasuredMemory, micro_batch: int) -> Peak:
    if phase.action == "read":
        return measured.peak(("read",), **_shape(job, phase, micro_batch))
    samples = min(job.hints, micro_batch) if phase.role == "guidance" else 1
    return generation_peak(measured, micro_batch, job.prompt_tokens, job.completion_tokens, samples)


def generation_peak(measured: MeasuredMemory, rows: int, prompt: int, completion: int, samples: int = 1) -> Peak:
    """Return the largest peak of a wave of completions: at the prompts, one per `samples` rows, at the first token, and
    at the last one, when the KV cache is longest."""
    whole = prompt + completion
    peaks = [
        measured.peak(("prompt",), rows=-(-rows // samples), tokens=prompt + 1),
        measured.peak(("choose",), rows=rows, tokens=prompt + 1),
        measured.peak(("token", "last choose"), rows=rows, tokens=whole),
    ]
    if samples > 1:
        peaks.append(measured.peak(("copied",), rows=rows, tokens=prompt + 1))
    return max(peaks, key=lambda peak: peak.size)


def _gathered_for_use(job: TrainingJob, strategy: Strategy, phase: MemoryPhase) -> float:
    """Return the bytes of a sharded model gathered on every rank: hierarchical training does so to generate or read; a
    rollout needs both policies. Under ZeRO-2 weights are never sharded."""
    if job.stage != "hierarchical" or strategy.shards in WHOLE_WEIGHTS:
        return 0.0
    return job.model.sizes.parameters * (2 * job.trained_width if phase.action == "generate" else job.base_width)
