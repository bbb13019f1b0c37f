"""What an iteration came to: a flat dict of figures, a line of it in metrics.jsonl.

    acc/turn1, acc/turn2 ...   mean score of each answer, of the episodes trained on; held_out/... of the others
    wrong_to_right             shares of episodes whose first answer was wrong and whose last is right, and back
    same_answer                share of answers that repeat the one before them
    reward/std                 over last answers: where it falls and the mean does not rise, policies repeat themselves
                               (RAGEN's echo trap, arXiv 2504.20073), which `echo_trap` tells

A score counts as right from 0.5 on. All but `Lines` are functions of what is handed in.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from r2v.errors import InputError
from r2v.hrl.algorithm.critic import Values
from r2v.hrl.rollout.transitions import behind, ends, hints_of
from r2v.storage.files import writing

if TYPE_CHECKING:
    from r2v.hrl.algorithm.training_batch import Lesson
    from r2v.hrl.rollout.episode import Episode
    from r2v.hrl.rollout.generator import Segment
    from r2v.hrl.training.optimizer_step import Stepped

FILE = "metrics.jsonl"
WINDOW = 5
"""Iterations that the alarm takes together."""
EARNED = 0.1
"""Mean reward below which the alarm is silent: where hardly anything is earned, its spread is luck."""


def accuracy(episodes: Sequence[Episode]) -> dict[str, Any]:
    """How right the trunk's answers are, turn by turn, with counts."""
    scores = _scores(episodes)
    right = scores >= 0.5
    return {
        "problems": len(episodes),
        "accuracy": [float(mean) for mean in scores.mean(0)],
        "right": [int(count) for count in right.sum(0)],
        "delta": float((scores[:, -1] - scores[:, 0]).mean()),
        "wrong_to_right": int((~right[:, 0] & right[:, -1]).sum()),
        "right_to_wrong": int((right[:, 0] & ~right[:, -1]).sum()),
    }


def of_accuracy(measured: Mapping[str, Any], stem: str = "") -> dict[str, float]:
    """`accuracy` as flat figures, changes as shares."""
    return {
        **{f"{stem}acc/turn{turn}": value for turn, value in enumerate(measured["accuracy"], start=1)},
        f"{stem}delta": measured["delta"],
        f"{stem}wrong_to_right": measured["wrong_to_right"] / measured["problems"],
        f"{stem}right_to_wrong": measured["right_to_wrong"] / measured["problems"],
    }


def of_episodes(episodes: Sequence[Episode]) -> dict[str, float]:
    """What was played."""
    last = torch.tensor([end.score for episode in episodes for end in ends(episode)], dtype=torch.float64)
    answers = [turn.answer for episode in episodes for turn in episode.turns]
    pairs = [
        (one.answer.text.strip(), other.answer.text.strip())
        for episode in episodes
        for one, other in zip(episode.turns, episode.turns[1:], strict=False)
    ]
    figures = of_accuracy(accuracy(episodes)) | {
        "reward/mean": float(last.mean()),
        "reward/std": float(last.std(correction=0)),
        "same_answer": sum(one == other for one, other in pairs) / len(pairs),
        "answer/tokens": sum(len(one.tokens) for one in answers) / len(answers),
        "answer/cut": sum(not one.ended for one in answers) / len(answers),
    }
    if episodes[0].hints[0]:
        hints = hints_of(episodes)
        figures |= {
            "hint/tokens": float(hints.tokens.mean()),
            "hint/leak": float(hints.leaked.double().mean()),
            "hint/judged": float((hints.judged == (hints.before >= 0.5)).double().mean()),
            "hint/pay": float((hints.after - hints.before).mean()),
        }
    return figures


def tokens(episodes: Sequence[Episode]) -> int:
    """How many were generated."""
    return sum(len(one.tokens) for one in _said(episodes))


def longest(episodes: Sequence[Episode]) -> int:
    """Tokens of the longest prompt with what was said upon it; 1 where nothing was said."""
    return max((len(one.prompt) + len(one.tokens) for one in _said(episodes)), default=1)


def _said(episodes: Sequence[Episode]) -> list[Segment]:
    answers = [
        turn.answer
        for episode in episodes
        for turn in (episode.turns[0], *(one for at in range(1, len(episode.turns)) for one in behind(episode, at)))
    ]
    return answers + [one.hint for episode in episodes for group in episode.hints for one in group]


def of_values(values: Values, returns: Tensor) -> dict[str, float]:
    """What the critic says of the answers, beside what they came to (N,)."""
    q, v = values.q.amin(0), values.v.mean(0)
    return {
        **{
            f"critic/{name}_{what}": float(getattr(heads, what)())
            for name, heads in (("q", q), ("v", v))
            for what in ("mean", "min", "max")
        },
        "critic/corr": correlation(q, returns),
    }


def correlation(one: Tensor, other: Tensor) -> float:
    """Pearson's; 0 where one of them does not vary."""
    a, b = one - one.mean(), other - other.mean()
    both = float((a.square().sum() * b.square().sum()).sqrt())
    return float((a * b).sum()) / both if both > 0 else 0.0


def of_lesson(role: str, lesson: Lesson) -> dict[str, float]:
    """Advantages: of an unbiased baseline the mean is about 0."""
    return {
        f"{role}/advantage_mean": float(lesson.advantage.mean()),
        f"{role}/advantage_std": float(lesson.advantage.std(correction=0)),
    }


def of_policy(role: str, steps: Sequence[Stepped]) -> dict[str, float]:
    """A policy's updates: losses and norms are means over them, the rest is of the last one."""
    apart, spread, clipped, count = steps[-1].counted
    return of_steps(role, steps) | {
        f"{role}/kl": apart / count,
        f"{role}/entropy": spread / count,
        f"{role}/clipped": clipped / count,
        f"{role}/tokens": count,
    }


def of_steps(role: str, steps: Sequence[Stepped]) -> dict[str, float]:
    """Mean loss and gradient norm of updates, and the last loss."""
    return {
        f"{role}/loss": sum(step.loss for step in steps) / len(steps),
        f"{role}/loss_last": steps[-1].loss,
        f"{role}/grad_norm": sum(step.norm for step in steps) / len(steps),
    }


def echo_trap(history: Sequence[tuple[float, float]]) -> bool:
    """Whether rewards' spread fell below half of what it was at its widest and their mean is no higher than then.
    `history` are (mean, std) by iteration; both are taken over `WINDOW` iterations."""
    if len(history) < 2 * WINDOW:
        return False
    windows = [history[start : start + WINDOW] for start in range(len(history) - WINDOW + 1)]
    means, spreads = ([sum(pair[i] for pair in window) / WINDOW for window in windows] for i in range(2))
    widest = max(range(len(windows)), key=lambda i: (spreads[i], i))
    return spreads[-1] < 0.5 * spreads[widest] and EARNED <= means[widest] >= means[-1]


def _scores(episodes: Sequence[Episode]) -> Tensor:
    """(N, H), of the trunks."""
    return torch.tensor([[turn.score for turn in episode.turns] for episode in episodes], dtype=torch.float64)


class Lines:
    """metrics.jsonl. Its length is part of a checkpoint: what was written after that is written again."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    @property
    def length(self) -> int:
        """Bytes."""
        return self._path.stat().st_size if self._path.exists() else 0

    def add(self, figures: Mapping[str, Any]) -> None:
        """One line, on the disk when this returns; what is not finite is null. Raises EnvironmentFault where the disk
        refuses."""
        told = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in figures.items()
        }
        line = json.dumps(told, separators=(",", ":")).encode() + b"\n"
        with writing(self._path), self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def cut(self, length: int) -> None:
        """Be as long as a checkpoint says. Raises InputError where lines are missing."""
        if self.length < length:
            raise InputError(
                f"{self._path}: has {self.length} bytes, the checkpoint beside it knows of {length}; put "
                "it back, or remove the checkpoints to start anew"
            )
        if self.length > length:
            with writing(self._path):
                os.truncate(self._path, length)
