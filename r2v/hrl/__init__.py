"""Hierarchical RL: an answer, a hint, a better answer; a critic of whole utterances, policies of tokens.

`rewards` say what is paid, `critic` what an utterance is worth, `advantage` by how much it was better than expected,
`logprobs`, `kl` and `losses` what a token learns from that, `replay` what is remembered. All of them are functions of
tensors, with any number of turns; who plays and who trains is decided elsewhere.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`DoubleCritic`, loaded with torch only when it is asked for."""
    if name == "DoubleCritic":
        from r2v.hrl.critic import DoubleCritic

        return DoubleCritic
    raise AttributeError(f"module {__name__} has no attribute {name}")
