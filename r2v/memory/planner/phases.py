"""The peak of one phase on one GPU, as a function of how many rows are taken at a time.

peak = resting bytes of all roles there
     + the phase's own gradients, and what its sharding gathers
     + the larger of a micro-batch's activations and the optimizer's temporaries
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from r2v.memory.planner import passes
from r2v.memory.planner.layers import Layers, Widths, widths_of
from r2v.memory.planner.passes import Passage, Peak
from r2v.memory.planner.roles import Device, Phase
from r2v.memory.planner.state import State
from r2v.memory.planner.work import Machine, Setting, Work


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes of a phase at its worst moment."""

    resting: float
    """Weights and optimizers of every role on the GPU."""
    gradients: float
    """The phase's own, and what its sharding gathers or sends from."""
    working: float
    """Activations, logits and caches of one micro-batch, or the optimizer's temporaries where those are more."""
    where: str
    """The worst moment."""

    @property
    def total(self) -> float:
        """All of it, as torch.cuda.max_memory_allocated would say."""
        return self.resting + self.gradients + self.working

    def corrected(self, factor: float) -> Need:
        """With `working` as a probe found it."""
        return self if factor == 1 else replace(self, working=self.working * factor)

    def reserved(self, machine: Machine) -> float:
        """What the allocator takes for it: memory that comes and goes leaves gaps."""
        return self.total + self.working * machine.fragmentation


def need(work: Work, setting: Setting, device: Device, phase: Phase, rows: int) -> Need:
    """What `phase` needs when it takes `rows` rows at a time."""
    states = {role.name: role.state for role in device.roles}
    own = states.get(phase.role, State())
    resting = sum(role.state.resting for role in device.roles)
    if phase.action == "load":
        return Need(
            resting=sum(role.state.weights for role in device.roles),
            gradients=0,
            working=2 * phase.shape.embedding,
            where="table before and after it is widened",
        )
    if phase.action in ("generate", "read"):
        peak = (
            _generating(work, phase, rows)
            if phase.action == "generate"
            else passes.silent(_passage(work, setting, phase, rows))
        )
        return Need(
            resting=resting,
            gradients=own.gathered + _together(work, setting, phase),
            working=peak.size,
            where=peak.where,
        )
    fresh = rows >= phase.rows and own.gathered == 0
    peak = passes.train(_passage(work, setting, phase, rows, fresh=fresh))
    gradients, held = own.gradients + own.gathered, 0 if fresh else own.gradients + own.gathered
    if held + peak.size >= gradients + own.step:
        return Need(resting=resting, gradients=held, working=peak.size, where=peak.where)
    return Need(resting=resting, gradients=gradients, working=own.step, where="optimizer step")


def _together(work: Work, setting: Setting, phase: Phase) -> float:
    """Who speaks or is read in hierarchical training is whole meanwhile, on every rank: both policies in a rollout.
    Under ZeRO-2 weights always are."""
    if work.stage != "hierarchical" or setting.shards in ("none", "zero2"):
        return 0.0
    return work.model.parameters * (2 * work.trained_width if phase.action == "generate" else work.base_width)


def _passage(work: Work, setting: Setting, phase: Phase, rows: int, *, fresh: bool = False) -> Passage:
    language = phase.shape.family == work.model.family and not phase.shape.encoder
    widths = _widths(work, phase) if language else widths_of("float32", adapters=False, autocast=False)
    layers = Layers(
        shape=phase.shape,
        rows=rows * phase.texts,
        tokens=phase.tokens,
        widths=widths,
        full=phase.full,
        rank=0 if phase.full or phase.action == "read" else work.lora_rank,
        fresh=fresh,
        four_bit=work.four_bit and language,
    )
    if not language or work.stage == "verifier":
        return Passage(layers=layers, checkpoint=setting.checkpoint and language, top="states")
    return Passage(layers=layers, checkpoint=setting.checkpoint, chunk=setting.chunk)


def _widths(work: Work, phase: Phase) -> Widths:
    """TRL and the verifier compute under autocast, hierarchical training in what the weights stand in."""
    return widths_of(
        work.precision, adapters=not phase.full, autocast=work.stage != "hierarchical", four_bit=work.four_bit
    )


def _generating(work: Work, phase: Phase, rows: int) -> Peak:
    """The larger of two moments: a prompt's forward, its keys and values kept; and the last token, the cache of every
    row at its longest, the copy that lengthens one layer's part of it, logits and probabilities."""
    widths, shape = _widths(work, phase), phase.shape
    width = widths.compute
    cache = rows * (work.tokens * shape.kv_bytes_per_token(width) + shape.fixed_cache_entries * width)
    growing = rows * work.tokens * shape.kv_heads * shape.head_dim * width
    prompt = Layers(
        shape=shape,
        rows=rows,
        tokens=work.prompt_tokens,
        full=False,
        rank=work.lora_rank,
        widths=widths,
        four_bit=work.four_bit,
    )
    begun = rows * work.prompt_tokens * shape.kv_bytes_per_token(width)
    reading = passes.silent(Passage(layers=prompt, top="states"))
    last = cache + growing + rows * shape.vocab * (width + 8)
    return max(
        Peak(size=last, where="last token, cache full"),
        Peak(size=begun + reading.size, where=f"prompt, {reading.where}"),
        key=lambda one: one.size,
    )
