"""The training job of a configuration: what each training stage asks of memory. No torch, no weights."""

from __future__ import annotations

from typing import Any

from r2v.config import Config, HierarchicalConfig, Phase, PolicyConfig
from r2v.memory.planner.training_job import StageName, TrainingJob
from r2v.memory.shapes import shape_of

TINY_CRITIC = "tiny"
"""`hierarchical.critic.model_name` of the critic of random weights over the policy's own tokens: too small to count."""


def job_of_stage(config: Config, stage: StageName) -> TrainingJob:
    """The stage's training job under this configuration. Raises InputError where a model's config.json is missing."""
    if stage == "hierarchical":
        return job_of_hierarchical(config.policy, config.hierarchical)
    return job_of_phase(config.policy, config.training.phase(stage), stage)


def job_of_hierarchical(policy: PolicyConfig, h: HierarchicalConfig) -> TrainingJob:
    """Hierarchical training, at its largest batch: every completion of an iteration that can be given credit."""
    rank, critic = policy.lora_r, h.critic.model_name
    completions = h.episodes * (h.turns - 1 + h.guidance.hints)
    return TrainingJob(
        stage="hierarchical",
        critic=None if critic == TINY_CRITIC else shape_of(critic),
        value=h.guidance.enabled and h.guidance.baseline == "value",
        precision="mixed" if rank else "float32",
        prompt_tokens=policy.max_seq_len,
        completion_tokens=max(h.answer_tokens, h.hint_tokens),
        critic_tokens=h.critic.max_tokens,
        episodes=h.episodes,
        hints=h.guidance.hints,
        batch=max(h.critic.batch_size, completions),
        replay=h.replay.capacity,
        **_model(policy),
    )


def job_of_phase(policy: PolicyConfig, phase: Phase, stage: StageName) -> TrainingJob:
    """BC, DPO or the verifier, on sequences of `policy.max_seq_len` tokens: the longest there may be."""
    completion = policy.max_seq_len // 8
    return TrainingJob(
        stage=stage,
        prompt_tokens=policy.max_seq_len - completion,
        completion_tokens=completion,
        batch=phase.batch_size * phase.gradient_accumulation_steps,
        **_model(policy),
    )


def _model(policy: PolicyConfig) -> dict[str, Any]:
    return {
        "model": shape_of(policy.model_name),
        "lora_rank": policy.lora_r,
        "four_bit": policy.load_in_4bit is True and policy.lora_r > 0,
    }
