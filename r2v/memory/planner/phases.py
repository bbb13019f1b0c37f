"""The peak memory of one phase on one GPU, as a function of its micro-batch.

peak = static: weights and optimizers of all roles on the GPU
     + gradients: those of the phase's own role, and what its sharding gathers
     + activation: the larger of a micro-batch's activations and the optimizer's temporaries
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from r2v.memory.planner import passes
from r2v.memory.planner.generation import GenerationShape, generation_peak
from r2v.memory.planner.layers import Layers, Widths, widths_of
from r2v.memory.planner.passes import ModelPass, Peak
from r2v.memory.planner.roles import Device, MemoryPhase
from r2v.memory.planner.state import WHOLE_WEIGHTS, RoleMemory
from r2v.memory.planner.training_job import Machine, Strategy, TrainingJob


@dataclass(frozen=True, kw_only=True)
class PhaseMemory:
    """Bytes of a phase at its peak."""

    static: float
    """Weights and optimizers of every role on the GPU."""
    gradients: float
    """The phase's own, and what its sharding gathers or sends from."""
    activation: float
    """Activations, logits and caches of one micro-batch, or the optimizer's temporaries where those are larger."""
    peak_at: str
    """What runs at the peak, such as "backward, logits"."""

    @property
    def total(self) -> float:
        """The peak, as torch.cuda.max_memory_allocated counts it."""
        return self.static + self.gradients + self.activation

    def corrected(self, factor: float) -> PhaseMemory:
        """With activation bytes times the factor that a probe measured."""
        return self if factor == 1 else replace(self, activation=self.activation * factor)

    def reserved(self, machine: Machine) -> float:
        """Bytes that the allocator reserves for it: memory that comes and goes leaves gaps."""
        return self.total + self.activation * machine.fragmentation


def phase_memory(
    job: TrainingJob, strategy: Strategy, device: Device, phase: MemoryPhase, micro_batch: int
) -> PhaseMemory:
    """The peak of a phase that takes `micro_batch` sequences at a time."""
    states = {role.name: role.state for role in device.roles}
    state = states.get(phase.role, RoleMemory())
    static = sum(role.state.static for role in device.roles)
    if phase.action == "load":
        return PhaseMemory(
            static=sum(role.state.weights for role in device.roles),
            gradients=0,
            activation=2 * phase.shape.embedding,
            peak_at="embedding, before and after its cast to float32",
        )
    if phase.action in ("generate", "read"):
        peak = (
            _generating(job, strategy, phase, micro_batch)
            if phase.action == "generate"
            else passes.inference_peak(_model_pass(job, strategy, phase, micro_batch))
        )
        return PhaseMemory(
            static=static,
            gradients=state.gathered + _gathered_for_use(job, strategy, phase),
            activation=peak.size,
            peak_at=peak.at,
        )
    fresh = micro_batch >= phase.batch and state.gathered == 0
    peak = _training(job, strategy, phase, micro_batch, fresh)
    # Accumulated gradients are there during a micro-batch, unless it is the only one of the update.
    gradients, held = state.gradients + state.gathered, 0 if fresh else state.gradients + state.gathered
    if held + peak.size >= gradients + state.step:
        return PhaseMemory(static=static, gradients=held, activation=peak.size, peak_at=peak.at)
    return PhaseMemory(static=static, gradients=gradients, activation=state.step, peak_at="optimizer step")


def _training(job: TrainingJob, strategy: Strategy, phase: MemoryPhase, micro_batch: int, fresh: bool) -> Peak:
    """Where the critic reads two texts of each row, one by one: both are there when backward begins; then the second's
    gradients wait while the first runs."""
    peak = passes.training_peak(_model_pass(job, strategy, phase, micro_batch, fresh=fresh))
    if phase.texts == 1 or not phase.shape.encoder:
        return peak
    one = _model_pass(job, strategy, replace(phase, texts=1), micro_batch, fresh=fresh)
    return max(peak, passes.training_peak(one, second=True), key=lambda some: some.size)


def _gathered_for_use(job: TrainingJob, strategy: Strategy, phase: MemoryPhase) -> float:
    """Hierarchical training gathers a sharded model on every rank while it generates or is read; a rollout needs both
    policies. Under ZeRO-2 weights are never sharded."""
    if job.stage != "hierarchical" or strategy.shards in WHOLE_WEIGHTS:
        return 0.0
    return job.model.parameters * (2 * job.trained_width if phase.action == "generate" else job.base_width)


def _model_pass(
    job: TrainingJob, strategy: Strategy, phase: MemoryPhase, micro_batch: int, *, fresh: bool = False
) -> ModelPass:
    language = phase.shape.family == job.model.family and not phase.shape.encoder
    widths = _widths(job, strategy, phase) if language else widths_of("float32", adapters=False, autocast=False)
    layers = Layers(
        shape=phase.shape,
        rows=micro_batch * phase.texts,
        tokens=phase.tokens,
        widths=widths,
        full=phase.full,
        rank=0 if phase.full or phase.action == "read" else job.lora_rank,
        fresh=fresh,
        four_bit=job.four_bit and language,
    )
    if not language or job.stage == "verifier":
        return ModelPass(layers=layers, checkpoint=strategy.checkpoint and language, top="states")
    completions = job.stage == "hierarchical" and not strategy.predicts_all
    predicted = micro_batch * min(job.completion_tokens, phase.tokens) if completions else None
    return ModelPass(layers=layers, checkpoint=strategy.checkpoint, chunk=strategy.chunk, predicted=predicted)


def _widths(job: TrainingJob, strategy: Strategy, phase: MemoryPhase) -> Widths:
    """TRL and the verifier compute under autocast. Hierarchical training computes in what the weights stand in, but for
    trained weights that are whole on each rank."""
    whole = job.lora_rank == 0 and strategy.shards in WHOLE_WEIGHTS
    return widths_of(
        job.precision,
        adapters=job.lora_rank > 0,
        autocast=job.stage != "hierarchical" or whole,
        four_bit=job.four_bit,
    )


def _generating(job: TrainingJob, strategy: Strategy, phase: MemoryPhase, micro_batch: int) -> Peak:
    widths = _widths(job, strategy, phase)
    shape = GenerationShape(
        model=phase.shape,
        widths=widths,
        lora_rank=job.lora_rank,
        four_bit=job.four_bit,
        prompt_tokens=job.prompt_tokens,
        completion_tokens=job.completion_tokens,
        samples=min(job.hints, micro_batch) if phase.role == "guidance" else 1,
        sampling="sampled",
        full=phase.full,
    )
    return generation_peak(shape, micro_batch)
