"""Samples of both policies, the input of advantages: answers with their trajectories, hints in groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from r2v.hrl.types import Completion


@dataclass(frozen=True, kw_only=True)
class AnswerBatch:
    """Samples of the actor: N answers, and P trajectories through them, from a first to a last answer."""

    completions: list[Completion]
    turn: Tensor
    """(N,): 0 at the first turn."""
    trajectories: Tensor
    """(P, H): index of a trajectory's answer at each turn. Trajectories of one episode differ only in the last."""
    scores: Tensor
    """(P, H): scores of the checker."""
    weight: Tensor
    """(N,): share in the actor's loss: 1, or 1/K for each of the K last answers of an episode. All turns then weigh the
    same, whatever the number of hints, as in the expected return."""
    group: Tensor
    """(N,): number of the problem, equal for all of its episodes."""

    def mean_over_trajectories(self, values: Tensor) -> Tensor:
        """Return (N,): the mean of values (P, H) over the trajectories that contain each answer."""
        flat = self.trajectories.reshape(-1)
        total = values.new_zeros(len(self.completions)).index_add(0, flat, values.reshape(-1))
        return total / torch.bincount(flat, minlength=len(self.completions))


@dataclass(frozen=True, kw_only=True)
class HintBatch:
    """Samples of the guidance: G groups of K hints, each group for one answer; completions are group by group."""

    completions: list[Completion]
    before: Tensor
    """(G, 1): score of the answer before the hints."""
    after: Tensor
    """(G, K): scores of the answers after each hint."""
    leaked: Tensor
    """(G, K), bool: True if the hint contains the reference answer."""
    says_right: Tensor
    """(G, K), bool: True if the hint calls the previous answer right."""
    tokens: Tensor
    """(G, K): lengths in tokens."""
