"""Training samples from episodes: the actor's answers, the guidance's hints, and the critic's transitions.

An episode is a trunk of H answers. After each answer but the last come K hints, each with an answer of its own; the
trunk continues after the first hint. The actor learns from the trunk's answers and, at the last turn, from all K, each
with the weight 1/K: these end the episode, so their value is known. Earlier answers outside the trunk have no
successors and only reward their hint. The guidance learns from every hint. The critic gets, for each answer but the
last, one transition to each of the K next observations, and every last answer as a terminal one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from r2v.hrl.algorithm.rewards import turn_rewards
from r2v.hrl.algorithm.samples import AnswerBatch, HintBatch
from r2v.hrl.rollout.episode import GuidedEpisode, ScoredAnswer
from r2v.hrl.types import Completion, TokenIds


@dataclass(frozen=True, kw_only=True)
class Transitions:
    """M transitions (o, y, rho, o') for the replay buffer. A terminal one has o as o', which is never read."""

    observations: list[TokenIds]
    actions: list[TokenIds]
    next_observations: list[TokenIds]
    reward: Tensor
    done: Tensor
    version: Tensor
    """(M,): version of the guidance that led to o'."""


def successors(episode: GuidedEpisode, turn: int) -> list[ScoredAnswer]:
    """Return the answers at a turn after the first: one for every hint to the previous answer, or only the trunk's."""
    return [hinted.after for hinted in episode.hints[turn - 1]] or [episode.turns[turn]]


def last_answers(episode: GuidedEpisode) -> list[ScoredAnswer]:
    """Return the last answers: one for every hint to the previous answer, or only the trunk's."""
    return successors(episode, len(episode.turns) - 1) if len(episode.turns) > 1 else [episode.turns[0]]


def answers_of(episodes: Sequence[GuidedEpisode]) -> AnswerBatch:
    """Return the actor's training samples."""
    completions: list[Completion] = []
    turns: list[int] = []
    trajectories: list[list[int]] = []
    scores: list[list[float]] = []
    weights: list[float] = []
    groups: list[int] = []
    problems: dict[str, int] = {}
    for episode in episodes:
        trunk, lasts = episode.turns[:-1], last_answers(episode)
        weights += [1.0] * len(trunk) + [1.0 / len(lasts)] * len(lasts)
        groups += [problems.setdefault(episode.problem.id, len(problems))] * (len(trunk) + len(lasts))
        stem = list(range(len(completions), len(completions) + len(trunk)))
        completions += [turn.answer for turn in trunk]
        turns += range(len(trunk))
        for last in lasts:
            trajectories.append([*stem, len(completions)])
            scores.append([*(turn.score for turn in trunk), last.score])
            completions.append(last.answer)
            turns.append(len(trunk))
    return AnswerBatch(
        completions=completions,
        turn=torch.tensor(turns),
        trajectories=torch.tensor(trajectories),
        scores=torch.tensor(scores, dtype=torch.float64),
        weight=torch.tensor(weights, dtype=torch.float64),
        group=torch.tensor(groups),
    )


def hints_of(episodes: Sequence[GuidedEpisode]) -> HintBatch:
    """Return the guidance's training samples; the episodes must have hints."""
    groups = [
        (episode, before, group)
        for episode in episodes
        for before, group in zip(episode.turns, episode.hints, strict=False)
    ]
    return HintBatch(
        completions=[hinted.hint for _, _, group in groups for hinted in group],
        before=torch.tensor([[before.score] for _, before, _ in groups], dtype=torch.float64),
        after=torch.tensor([[hinted.after.score for hinted in group] for _, _, group in groups], dtype=torch.float64),
        leaked=torch.tensor(
            [
                [leaks_answer(hinted.hint.text, episode.problem.answer) for hinted in group]
                for episode, _, group in groups
            ]
        ),
        says_right=torch.tensor(
            [[_says_right(hinted.hint.text, before) for hinted in group] for _, before, group in groups]
        ),
        tokens=torch.tensor(
            [[float(len(hinted.hint.tokens)) for hinted in group] for _, _, group in groups], dtype=torch.float64
        ),
    )


def _says_right(hint: str, before: ScoredAnswer) -> bool:
    """True if the hint calls the answer right. A hint without a verdict counts as misjudging: it earns no bonus."""
    stated = verdict(hint)
    return not before.score >= 0.5 if stated is None else stated


def transitions_of(episodes: Sequence[GuidedEpisode], weights: Sequence[float], version: int) -> Transitions:
    """Return the transitions of the actor's answers. `weights`: the actor's shares of the scores by turn. `version`:
    that of the guidance."""
    rows: list[tuple[TokenIds, TokenIds, TokenIds, float, float, bool]] = []
    for episode in episodes:
        for turn, scored in enumerate(episode.turns[:-1]):
            rows += [
                (scored.answer.prompt, scored.answer.tokens, after.answer.prompt, scored.score, weights[turn], False)
                for after in successors(episode, turn + 1)
            ]
        rows += [
            (last.answer.prompt, last.answer.tokens, last.answer.prompt, last.score, weights[-1], True)
            for last in last_answers(episode)
        ]
    observations, actions, next_observations, scores, shares, done = zip(*rows, strict=True)
    return Transitions(
        observations=list(observations),
        actions=list(actions),
        next_observations=list(next_observations),
        reward=turn_rewards(torch.tensor(scores, dtype=torch.float64), shares),
        done=torch.tensor(done),
        version=torch.full((len(rows),), version),
    )


_RIGHT, _WRONG = ("right", "correct", "keep it"), ("wrong", "incorrect", "not right", "not correct", "look again")


def verdict(hint: str) -> bool | None:
    """Return True if a hint calls the answer right, None without a verdict. The last verdict counts.

    >>> verdict("Keep it"), verdict("that is not right"), verdict("sum is 11")
    (True, False, None)
    """
    text = hint.lower()
    wrong = max((match.end() for word in _WRONG for match in re.finditer(rf"\b{word}\b", text)), default=0)
    right = max((match.end() for word in _RIGHT for match in re.finditer(rf"\b{word}\b", text)), default=0)
    return None if wrong == right == 0 else right > wrong


def leaks_answer(hint: str, answer: str) -> bool:
    """True if a hint contains the reference answer as a separate word, boxed or not.

    >>> leaks_answer("sum is 11", "11"), leaks_answer("sum is 110", "11")
    (True, False)
    >>> leaks_answer("11.5", "11"), leaks_answer("so 11.", r"\\boxed{11}")
    (False, True)
    """
    bare = " ".join(re.sub(r"^\\boxed\{(.*)\}$", r"\1", answer.strip()).lower().split())
    text = " ".join(hint.lower().split())
    return bool(bare) and re.search(rf"(?<![\w.]){re.escape(bare)}(?!\w|\.\d)", text) is not None
