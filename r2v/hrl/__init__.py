"""Hierarchical RL: an answer, a hint, a better answer; a critic of whole utterances, policies of tokens.

`rewards` say what is paid, `critic` what an utterance is worth, `advantage` by how much it was better than expected,
`logprobs`, `kl` and `losses` what a token learns from that, `replay` what is remembered: functions of tensors, with any
number of turns. `problems` and `prompts` say what is asked, `roles` who plays and where they stand (`placement`),
`segments` and `episode` how it is played, `draws` what else the critic's targets take.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "ArcherAgent": "r2v.hrl.agent",
    "DoubleCritic": "r2v.hrl.algorithm.critic",
    "optimize_batch_processing": "r2v.memory.batch_table",
}


def __getattr__(name: str) -> Any:
    """The names of seed 000, each loaded (the first two with torch) only when it is asked for."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
