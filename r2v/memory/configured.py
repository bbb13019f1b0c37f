"""What a configuration asks of memory: the `Work` of each training stage. No torch, no weights."""

from __future__ import annotations

from typing import Any

from r2v.config import Config, HierarchicalConfig, Phase, PolicyConfig
from r2v.memory.planner.work import StageName, Work
from r2v.memory.shapes import shape_of

OWN_READER = "tiny"
"""The critic of random weights over the policy's own tokens: too small to count."""


def work_of_stage(config: Config, stage: StageName) -> Work:
    """The stage's work under this configuration."""
    if stage == "hierarchical":
        return work_of_hierarchical(config.policy, config.hierarchical)
    return work_of_phase(config.policy, config.training.phase(stage), stage)


def work_of_hierarchical(policy: PolicyConfig, h: HierarchicalConfig) -> Work:
    """Hierarchical training: an update of the actor learns from every answer that can be paid for."""
    rank, critic = policy.lora_r, h.critic.model_name
    return Work(
        stage="hierarchical",
        critic=None if critic == OWN_READER else shape_of(critic),
        value=h.guidance.enabled and h.guidance.baseline == "value",
        precision="mixed" if rank else "float32",
        prompt_tokens=policy.max_seq_len,
        completion_tokens=max(h.answer_tokens, h.hint_tokens),
        critic_tokens=h.critic.max_tokens,
        episodes=h.episodes,
        hints=h.guidance.hints,
        batch=max(h.critic.batch_size, h.episodes * (h.turns - 1 + h.guidance.hints)),
        replay=h.replay.capacity,
        **_model(policy),
    )


def work_of_phase(policy: PolicyConfig, phase: Phase, stage: StageName) -> Work:
    """BC, DPO or the verifier on the longest rows there may be."""
    reply = policy.max_seq_len // 8
    return Work(
        stage=stage,
        prompt_tokens=policy.max_seq_len - reply,
        completion_tokens=reply,
        batch=phase.batch_size * phase.gradient_accumulation_steps,
        **_model(policy),
    )


def _model(policy: PolicyConfig) -> dict[str, Any]:
    return {
        "model": shape_of(policy.model_name),
        "lora_rank": policy.lora_r,
        "four_bit": policy.load_in_4bit is True and policy.lora_r > 0,
    }
