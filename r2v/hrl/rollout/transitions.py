"""An iteration's episodes as rows: what the actor said, what the guidance said, what the critic is to remember.

An episode is a trunk of H answers; behind each answer but the last stand K hints, each followed by an answer of its
own, and the trunk goes on behind the first. The actor learns from the trunk's answers and, at the last turn, from all
K: those are ends, and their worth is known. Before the last turn the answers beside the trunk lead nowhere, so they
pay only the hint that they follow. The guidance learns from every hint. The critic remembers, of each answer but the
last, a transition to what each of the K hints made of it, and every last answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from r2v.hrl.rollout.episode import Episode, Turn
    from r2v.hrl.rollout.generator import Segment


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the actor learns from: N answers, and the P ways through them from a first answer to a last one."""

    said: list[Segment]
    turn: Tensor
    """(N,): 0 at the first turn."""
    paths: Tensor
    """(P, H): which answer each way has at each turn. Ways of one episode differ in the last alone."""
    scores: Tensor
    """(P, H): the checker's."""

    def mean_over_paths(self, values: Tensor) -> Tensor:
        """(N,) of values (P, H): for each answer the mean over the ways that it is on."""
        flat = self.paths.reshape(-1)
        total = values.new_zeros(len(self.said)).index_add(0, flat, values.reshape(-1))
        return total / torch.bincount(flat, minlength=len(self.said))


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What the guidance learns from: G groups of K hints, each group upon one answer; rows are group by group."""

    said: list[Segment]
    before: Tensor
    """(G, 1): score of the answer that was given a hint."""
    after: Tensor
    """(G, K): of the answers after it."""
    leaked: Tensor
    """(G, K), bool: whether the hint says the problem's answer."""
    judged: Tensor
    """(G, K), bool: whether the hint calls the answer right."""
    tokens: Tensor
    """(G, K): lengths."""


@dataclass(frozen=True, kw_only=True)
class Transitions:
    """What the critic remembers: M times o, y, rho, o'. Behind a last answer o' is o, and is not looked at."""

    seen: list[tuple[int, ...]]
    said: list[tuple[int, ...]]
    next: list[tuple[int, ...]]
    reward: Tensor
    done: Tensor
    version: Tensor
    """Of the guidance that led to o'."""


def behind(episode: Episode, turn: int) -> list[Turn]:
    """The answers at a turn after the first: one behind every hint to the answer before, or the trunk's alone."""
    return [one.after for one in episode.hints[turn - 1]] or [episode.turns[turn]]


def ends(episode: Episode) -> list[Turn]:
    """The last answers: behind every hint to the one before them, or the trunk's alone."""
    return behind(episode, len(episode.turns) - 1)


def answers_of(episodes: Sequence[Episode]) -> Answers:
    """All that the actor said and can answer for."""
    said: list[Segment] = []
    turn: list[int] = []
    paths: list[list[int]] = []
    scores: list[list[float]] = []
    for episode in episodes:
        stem = list(range(len(said), len(said) + len(episode.turns) - 1))
        said += [one.answer for one in episode.turns[:-1]]
        turn += range(len(stem))
        for end in ends(episode):
            paths.append([*stem, len(said)])
            scores.append([*(one.score for one in episode.turns[:-1]), end.score])
            said.append(end.answer)
            turn.append(len(stem))
    return Answers(
        said=said, turn=torch.tensor(turn), paths=torch.tensor(paths), scores=torch.tensor(scores, dtype=torch.float64)
    )


def hints_of(episodes: Sequence[Episode]) -> Hints:
    """All that the guidance said; it must have said something."""
    groups = [
        (episode, before, group)
        for episode in episodes
        for before, group in zip(episode.turns, episode.hints, strict=False)
    ]
    said = [[one.hint for one in group] for _, _, group in groups]
    before = torch.tensor([[turn.score] for _, turn, _ in groups], dtype=torch.float64)
    verdicts = [[verdict(hint.text) for hint in group] for group in said]
    wrongly = [not turn.score >= 0.5 for _, turn, _ in groups]
    return Hints(
        said=[hint for group in said for hint in group],
        before=before,
        after=torch.tensor([[one.after.score for one in group] for _, _, group in groups], dtype=torch.float64),
        leaked=torch.tensor(
            [[says(one.hint.text, episode.problem.answer) for one in group] for episode, _, group in groups]
        ),
        judged=torch.tensor(
            [[wrong if one is None else one for one in row] for wrong, row in zip(wrongly, verdicts, strict=True)]
        ),
        tokens=torch.tensor([[float(len(hint.tokens)) for hint in group] for group in said], dtype=torch.float64),
    )


def transitions_of(episodes: Sequence[Episode], weights: Sequence[float], version: int) -> Transitions:
    """What is remembered of the actor's answers; `weights` are its shares of the scores, `version` that of the
    guidance."""
    rows: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], float, bool]] = []
    for episode in episodes:
        for turn, one in enumerate(episode.turns[:-1]):
            rows += [
                (one.answer.prompt, one.answer.tokens, after.answer.prompt, weights[turn] * one.score, False)
                for after in behind(episode, turn + 1)
            ]
        rows += [
            (end.answer.prompt, end.answer.tokens, end.answer.prompt, weights[-1] * end.score, True)
            for end in ends(episode)
        ]
    seen, said, ahead, reward, done = zip(*rows, strict=True)
    return Transitions(
        seen=list(seen),
        said=list(said),
        next=list(ahead),
        reward=torch.tensor(reward, dtype=torch.float64),
        done=torch.tensor(done),
        version=torch.full((len(rows),), version),
    )


_RIGHT, _WRONG = ("right", "correct", "keep it"), ("wrong", "incorrect", "not right", "not correct", "look again")


def verdict(hint: str) -> bool | None:
    """Whether a hint calls the answer right; None where it does not say. What it says last counts.

    >>> verdict("Keep it"), verdict("that is not right"), verdict("sum is 11")
    (True, False, None)
    """
    text = hint.lower()
    wrong = max((match.end() for word in _WRONG for match in re.finditer(rf"\b{word}\b", text)), default=0)
    right = max((match.end() for word in _RIGHT for match in re.finditer(rf"\b{word}\b", text)), default=0)
    return None if wrong == right == 0 else right > wrong


def says(hint: str, answer: str) -> bool:
    """Whether a hint holds the answer as a word of its own, boxed or not.

    >>> says("sum is 11", "11"), says("sum is 110", "11"), says("11.5", "11"), says("so 11.", r"\\boxed{11}")
    (True, False, False, True)
    """
    bare = " ".join(re.sub(r"^\\boxed\{(.*)\}$", r"\1", answer.strip()).lower().split())
    said = " ".join(hint.lower().split())
    return bool(bare) and re.search(rf"(?<![\w.]){re.escape(bare)}(?!\w|\.\d)", said) is not None
