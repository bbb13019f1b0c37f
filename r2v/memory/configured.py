"""Memory planner's jobs of a configuration, one per stage that trains or acts. No torch, no weights."""

from __future__ import annotations

from typing import Any

from r2v.config import Config, HierarchicalConfig, InferenceConfig, Phase, PolicyConfig
from r2v.config.engines import VLLM
from r2v.memory.models import known_model
from r2v.memory.planner.acting import MOST_ROWS, ActingJob, Sampling
from r2v.memory.planner.training_job import StageName, TrainingJob
from r2v.memory.store import Measure
from r2v.storage.weights import BUNDLED

TINY_CRITIC = "tiny"
"""`hierarchical.critic.model_name` of the random critic over the policy's own tokens, too small to count."""


def job_of_stage(config: Config, stage: StageName, code: str, measure: Measure | None = None) -> TrainingJob:
    """Return a stage's training job. `code`: the `memory` of its row in JOBS. Raise InputError if a model's config.json
    is missing, or its sizes are not stored and `measure` is None."""
    if stage == "hierarchical":
        return job_of_hierarchical(config.policy, config.hierarchical, code, measure)
    return job_of_phase(config.policy, config.training.phase(stage), stage, code, measure)


def job_of_hierarchical(
    policy: PolicyConfig, h: HierarchicalConfig, code: str, measure: Measure | None = None
) -> TrainingJob:
    """Return the job of hierarchical training at its largest batch: every completion of an iteration with credit."""
    critic = h.critic.model_name
    completions = h.episodes * h.group * (h.turns - 1 + h.guidance.hints)
    return TrainingJob(
        stage="hierarchical",
        code=code,
        critic=None if critic == TINY_CRITIC else known_model(critic, measure),
        value=h.guidance.enabled and h.guidance.baseline == "value",
        precision="mixed" if policy.dtype in ("auto", "bfloat16") else "float32",
        prompt_tokens=policy.max_seq_len,
        completion_tokens=max(h.longest_answer, h.longest_hint),
        critic_tokens=h.critic.max_tokens,
        episodes=h.episodes * h.group,
        hints=h.guidance.hints,
        batch=max(h.critic.batch_size, completions),
        replay=h.replay.capacity,
        optimizer=h.optimizer,
        engine_memory=policy.engine_memory if policy.engine == VLLM else 0.0,
        **_model(policy, measure),
    )


def job_of_phase(
    policy: PolicyConfig, phase: Phase, stage: StageName, code: str, measure: Measure | None = None
) -> TrainingJob:
    """Return the job of BC, DPO or the verifier on sequences of `policy.max_seq_len` tokens, the longest allowed."""
    completion = policy.max_seq_len // 8
    return TrainingJob(
        stage=stage,
        code=code,
        prompt_tokens=policy.max_seq_len - completion,
        completion_tokens=completion,
        batch=phase.batch_size * phase.gradient_accumulation_steps,
        optimizer=phase.optimizer or "adamw",
        **_model(policy, measure),
    )


def _model(policy: PolicyConfig, measure: Measure | None) -> dict[str, Any]:
    return {
        "model": known_model(policy.model_name, measure),
        "lora_rank": policy.lora_r,
        "four_bit": policy.in_4bit and policy.lora_r > 0,
    }


def acting_job(config: Config, stage: str, code: str, measure: Measure | None = None) -> ActingJob:
    """Return the job of a stage that plays episodes with the local model. Raise as `job_of_stage` does."""
    actors, verifiers = _cast(config, stage)
    samples, sampling = _samples(config, stage)
    batch = config.rollout.batch_size
    return ActingJob(
        stage=stage,
        code=code,
        actors=actors,
        verifiers=verifiers,
        batch=max(batch or MOST_ROWS, samples),
        chosen=batch is None,
        samples=samples,
        sampling=sampling,
        engine_memory=_engines_beside(config.policy),
        **_acting(config.policy, config.inference, measure),
    )


def decoder_job(policy: PolicyConfig, inference: InferenceConfig, code: str, measure: Measure) -> ActingJob:
    """Return the job of one local model whose waves, of the costliest sampling, are chosen from the free memory."""
    own: dict[str, Any] = {"stage": "decoder", "code": code, "actors": ("policy",), "verifiers": ()}
    own |= {"batch": MOST_ROWS, "chosen": True, "sampling": "nucleus"}
    return ActingJob(**own, **_acting(policy, inference, measure))


def _acting(policy: PolicyConfig, inference: InferenceConfig, measure: Measure | None) -> dict[str, Any]:
    model, completion = _model(policy, measure), inference.max_new_tokens
    sizes = {"prompt_tokens": policy.max_seq_len - completion, "completion_tokens": completion}
    return {**model, **sizes, "width": _acting_width(policy, model["model"].dtype)}


def _engines_beside(policy: PolicyConfig) -> float:
    """Return the share of the GPU's memory outside the plan. If the verifier is served too, the plan is of one of the
    two servers, within its own share."""
    if policy.engine_verifier:
        return 1 - policy.engine_memory
    return policy.engine_memory if policy.engine == VLLM else 0.0


def _cast(config: Config, stage: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the policies and verifiers that a stage holds in memory."""
    if stage == "candidates":
        return ("policy",), tuple(f"verifier fold {fold}" for fold in range(config.candidates.num_folds))
    if stage == "ablations":
        return ("policy",), ("verifier",)
    if stage != "evaluate":
        return ("policy",), ("verifier",) if config.router.reads_verifier else ()
    if not config.evaluation.of_trained:
        return ("slm_base",), ()
    variants = [name for name in ("slm_bc_only", "slm_base") if name in config.evaluation.methods]
    return ("policy", *variants), ("verifier",) if config.evaluation.asks_verifier(config.router) else ()


def _samples(config: Config, stage: str) -> tuple[int, Sampling]:
    """Return the largest number of completions of one prompt, and their sampling method."""
    drawn = config.candidates if stage == "candidates" else config.inference
    count = config.candidates.num_samples if stage == "candidates" else config.inference.num_candidates
    if stage == "ablations":
        rows = [row.name for row in config.ablations.rows if row.ablated_method == "best_of_k"]
        count, sampled = max((int(name.removeprefix("best_of_")) for name in rows), default=count), bool(rows)
    else:
        sampled = stage == "candidates" or (stage == "evaluate" and "best_of_k" in config.evaluation.methods)
    if not (sampled or (stage != "candidates" and "samples" in config.router.features)):
        return 1, "greedy"
    if drawn.temperature == 0:
        return 1, "greedy"
    return count, "nucleus" if drawn.top_p < 1 else "sampled"


def _acting_width(policy: PolicyConfig, saved: str) -> int:
    """Return the bytes per weight on a GPU, by the type that `r2v.policy.load` chooses."""
    dtype = policy.dtype
    if dtype == "auto":
        dtype = "float32" if policy.model_name in BUNDLED else saved  # type: ignore[assignment]
    return {"float64": 8, "bfloat16": 2, "float16": 2}.get(dtype, 4)
