"""Candidates: K actions per state with their verifier scores and the values of their executed continuations.

The policy's samples are recorded as drawn: duplicates stay, marked by equal `canonical`, and are never drawn
again to fill up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from r2v.data.episode import Condition, to_line
from r2v.storage.files import write_lines
from r2v.wire.message import Message


@dataclass(frozen=True, kw_only=True)
class CandidateAction:
    """One action. `canonical` has its free arguments blanked, so equal means equal for the task; `value` is
    the mean of `n_rollouts` executed continuations, in [0, 1]: success, less for a detour (None: not played); `score`
    is the verifier's."""

    k: int
    text: str
    canonical: str
    logprob_sum: float | None = None
    n_tokens: int = 0
    finish_reason: Literal["stop", "length", "error"] = "stop"
    score: float | None = None
    value: float | None = None
    n_rollouts: int = 0


@dataclass(frozen=True, kw_only=True)
class CandidateState:
    """A state and its candidates. `state_id` is "<episode_id>#<step_idx>"; `teacher` is the teacher's action
    there, with k = -1; `canaries` are those planted in the state's observations."""

    state_id: str
    task_id: str
    split: str
    step_idx: int
    context_sha256: str
    prompt: tuple[Message, ...]
    candidates: tuple[CandidateAction, ...]
    teacher: CandidateAction | None = None
    canaries: tuple[str, ...] = ()
    condition: Condition = "clean"
    policy_sha256: str | None = None
    verifier_sha256: str | None = None


def write_states(path: Path, states: Iterable[CandidateState]) -> int:
    """Write states as JSON lines, sorted by id, and return how many."""
    return write_lines(path, map(to_line, sorted(states, key=lambda state: state.state_id)))
