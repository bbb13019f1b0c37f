"""Phase case: one phase of training that can be both planned and run, and what the planner predicts of it. No torch.

`r2v.memory.tracker.fake_tensor_run` runs a case; `benchmarks/planner.py` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from r2v.memory.model_registry import ModelConfigValues
from r2v.memory.planner.phases import PhaseMemory, phase_memory
from r2v.memory.planner.roles import Device, MemoryPhase, devices
from r2v.memory.planner.state import Optimizer, Precision
from r2v.memory.planner.training_job import Placement, StageName, Strategy, TrainingJob
from r2v.memory.shapes import from_config

CasePhase = Literal["actor", "guidance", "critic", "reference", "rollout", "bc", "verifier"]
_STAGES: dict[str, StageName] = {"bc": "bc", "verifier": "verifier"}


@dataclass(frozen=True, kw_only=True)
class PhaseCase:
    """One phase of one training strategy on one GPU, small enough for a test or as large as a real one."""

    phase: CasePhase
    model: ModelConfigValues
    """config.json of the language model."""
    critic: ModelConfigValues | None = None
    """config.json of the critic's backbone; None: no critic."""
    lora_rank: int = 16
    """Rank of the adapters; 0: all weights are trained."""
    precision: Precision = "bfloat16"
    optimizer: Optimizer = "adamw"
    checkpoint: bool = False
    """Gradient checkpointing."""
    chunk: int | None = 1024
    """Tokens whose logits exist at a time; None: all of them."""
    micro_batch: int = 4
    """Sequences at a time."""
    tokens: int = 128
    """Of each sequence."""
    micro_batches: int = 2
    """Of an update: the gradient accumulation."""

    @property
    def hierarchical(self) -> bool:
        """Whether the phase is one of hierarchical training, with all of its roles on the GPU."""
        return self.phase not in _STAGES


def planned(case: PhaseCase) -> PhaseMemory:
    """The memory that the planner predicts for it."""
    job, strategy, device, phase = _as_planned(case)
    return phase_memory(job, strategy, device, phase, case.micro_batch)


def state_of(case: PhaseCase) -> float:
    """Bytes of weights, optimizers and the phase's own gradients, as the planner counts them."""
    _, _, device, phase = _as_planned(case)
    return sum(role.state.total if role.name == phase.role else role.state.static for role in device.roles)


def _as_planned(case: PhaseCase) -> tuple[TrainingJob, Strategy, Device, MemoryPhase]:
    stage = _STAGES.get(case.phase, "hierarchical")
    job = TrainingJob(
        stage=stage,
        model=from_config(case.model),
        critic=from_config(case.critic) if case.critic else None,
        lora_rank=case.lora_rank,
        precision=case.precision,
        optimizer=case.optimizer,
        prompt_tokens=case.tokens - 1,
        completion_tokens=1,
        critic_tokens=case.tokens,
        batch=case.micro_batch * case.micro_batches,
    )
    placement: Placement = "shared" if stage == "hierarchical" and case.lora_rank else "full"
    strategy = Strategy(placement=placement, checkpoint=case.checkpoint, chunk=case.chunk, predicts_all=True)
    device = devices(job, strategy, 1)[0]
    name = "rollout, actor" if case.phase == "rollout" else case.phase
    return job, strategy, device, next(phase for phase in device.phases if phase.name == name)
