"""Small sizes, at which an environment that a small random model cannot read runs through ten stages in seconds."""

from __future__ import annotations

SMALL = (
    "data.num_episodes=12",
    "policy.lora_r=8",
    "policy.device=cpu",
    "training.num_epochs=1",
    "training.bc.max_examples=24",
    "inference.max_steps=6",
    "verifier.num_tasks=6",
    "candidates.num_samples=2",
    "candidates.num_tasks=3",
    "router.num_tasks=4",
    "router.num_calibration_tasks=3",
    "router.round_tasks=2",
    "preference.accept_tasks=3",
    "evaluation.methods=[slm_only,llm_only,entropy_router,r2v]",
    "evaluation.seeds=[1]",
    "evaluation.num_tasks=3",
    "evaluation.conditions=[noisy]",
    "evaluation.bootstrap=50",
    "evaluation.gains_tasks=2",
    "evaluation.frontier_tasks=0",
    "ablations.names=[none]",
    "ablations.seeds=[1]",
)
