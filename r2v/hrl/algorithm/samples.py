"""Samples of both policies, as advantages are computed from them: answers with their trajectories, hints in groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from r2v.hrl.types import Completion


@dataclass(frozen=True, kw_only=True)
class AnswerBatch:
    """Samples of the actor: N answers, and the P trajectories through them, from a first answer to a last one."""

    completions: list[Completion]
    turn: Tensor
    """(N,): 0 at the first turn."""
    trajectories: Tensor
    """(P, H): index of the answer that a trajectory has at each turn. Those of one episode differ in the last alone."""
    scores: Tensor
    """(P, H): the checker's."""
    weight: Tensor
    """(N,): share in the actor's loss. 1, and 1/K for each of the K last answers that end one episode: all answers of
    a turn then weigh the same, however many hints there are, as they do in the expected return."""
    group: Tensor
    """(N,): number of the problem, the same for all episodes that answer it."""

    def mean_over_trajectories(self, values: Tensor) -> Tensor:
        """(N,) of values (P, H): per answer the mean over the trajectories that contain it."""
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
    """(G, K), bool: whether the hint contains the reference answer."""
    says_right: Tensor
    """(G, K), bool: whether the hint calls the answer before it right."""
    tokens: Tensor
    """(G, K): lengths in tokens."""
