"""Hierarchical RL: an actor answers, a guidance model hints, the actor answers again. Both and a critic are trained.

Folders, lowest first; each imports only earlier ones:

    types       token ids, completions, loss functions
    tasks       problems, checkers, prompts
    algorithm   rewards, critic and target network, advantages, log-probabilities, KL, losses: functions of tensors
    parallel    placement, micro-batch sizes, collectives, FSDP2 and DeepSpeed ZeRO
    models      base models with adapters, encoders, and the roles built from them
    rollout     generation, episodes, transitions, resampled actions
    training    replay buffer, optimizer steps, critic trainer, policies, checkpoints, metrics, the loop
    agent       all models as one object
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "ArcherAgent": "r2v.hrl.agent",
    "DoubleCritic": "r2v.hrl.algorithm.critic",
    "optimize_batch_processing": "r2v.memory.batch_table",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: the first two load torch, which `import r2v.hrl` must not."""
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
