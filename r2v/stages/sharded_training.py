"""Sharded training: whether the ranks of a phase divide weights, gradients or moments, and not the batch alone."""

from __future__ import annotations

from pathlib import Path

from r2v import config as c
from r2v import distributed
from r2v.errors import UsageError


def training_is_sharded(phase: c.Phase, policy: c.PolicyConfig, ranks: int) -> bool:
    """Whether ranks divide more than the batch. Raises UsageError, before anything is loaded, where that cannot be
    had."""
    if phase.fsdp:
        if ranks < 2 or not distributed.crowded(policy.device):
            # accelerate would train whole weights on each rank elsewhere, without a word
            raise UsageError(
                "training.fsdp=true: fewer than two GPUs are used here (policy.device, training.ranks), and only GPUs "
                "shard; set training.fsdp=false, or training.zero=2 or 3, which DeepSpeed does on a CPU too"
            )
        return True
    if not phase.zero and phase.deepspeed is None:
        return False
    asked = f"training.deepspeed={phase.deepspeed}" if phase.deepspeed else f"training.zero={phase.zero}"
    distributed.require_deepspeed(asked, policy.device)
    if phase.deepspeed and not Path(phase.deepspeed).is_file():
        raise UsageError(f"{asked}: no such file")
    if phase.zero == 3 and policy.in_4bit:
        raise UsageError(f"{asked}: 4-bit weights cannot be sharded; set training.zero=2 or policy.load_in_4bit=false")
    return True
