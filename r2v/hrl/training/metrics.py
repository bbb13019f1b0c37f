"""Metrics of an iteration: a flat dict of numbers, and one line of metrics.jsonl.

    acc/turn1, acc/turn2 ...   mean score of each answer of the training episodes; held_out/... of the held-out problems
    delta                      mean score of the last answer minus that of the first
    wrong_to_right             share of episodes with a wrong first and a right last answer; right_to_wrong: the reverse
    same_answer                share of answers that repeat the previous one
    reward/mean, reward/std    scores of last answers; a std that falls while the mean does not rise means that policies
                               repeat themselves (RAGEN's echo trap, arXiv 2504.20073), which `alarms` detects
    answer/cut, hint/cut       share cut at the token limit; prompt/cut: number of prompts with earlier texts cut to fit
                               policy.max_seq_len
    hint/pay, hint/leak        mean improvement after a hint; share of hints that contain the reference answer
    hint/judged                share of hints whose verdict on the answer is right
    actor/..., guidance/...    loss, loss_last, grad_norm, kl, entropy, clipped (share of tokens),
                               advantage_mean, advantage_std
    critic/...                 loss, td_held_out (loss on new transitions), q and v (mean, min, max), corr (of Q with
                               the return), gap (norm of critic minus target network), draws (resampled answers)
    replay/...                 rows, usable (share), age (in updates of the guidance)
    seconds/..., memory/...    time and peak memory by phase

A score counts as right from 0.5 on.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from r2v.errors import InputError
from r2v.hrl.algorithm.critic import CriticValues
from r2v.hrl.algorithm.training_batch import TrainingBatch
from r2v.hrl.rollout.episode import GuidedEpisode
from r2v.hrl.rollout.transitions import hints_of, last_answers, successors
from r2v.hrl.training.optimizer_step import StepResult
from r2v.hrl.types import Completion
from r2v.storage.files import writing

METRICS_FILE = "metrics.jsonl"


def accuracy(episodes: Sequence[GuidedEpisode]) -> dict[str, Any]:
    """Return figures of the answers that were played on (the trunk; not the branches): mean score by turn, counts of
    right answers by turn, and of answers that the guidance mended or spoiled between first and last turn."""
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


def conversations(episodes: Sequence[GuidedEpisode]) -> list[dict[str, Any]]:
    """Return the texts of the episodes' trunks: problem, reference, answers, hints and scores."""
    return [
        {
            "problem": episode.problem.text,
            "reference": episode.problem.answer,
            "answers": [turn.answer.text for turn in episode.turns],
            "hints": [group[0].hint.text for group in episode.hints if group],
            "scores": [turn.score for turn in episode.turns],
        }
        for episode in episodes
    ]


def of_accuracy(measured: Mapping[str, Any], stem: str = "") -> dict[str, float]:
    """Return `accuracy` as flat metrics, changes as shares."""
    return {
        **{f"{stem}acc/turn{turn}": value for turn, value in enumerate(measured["accuracy"], start=1)},
        f"{stem}delta": measured["delta"],
        f"{stem}wrong_to_right": measured["wrong_to_right"] / measured["problems"],
        f"{stem}right_to_wrong": measured["right_to_wrong"] / measured["problems"],
    }


def of_episodes(episodes: Sequence[GuidedEpisode]) -> dict[str, float]:
    """Return the metrics of the episodes."""
    last = torch.tensor([answer.score for episode in episodes for answer in last_answers(episode)], dtype=torch.float64)
    answers = [turn.answer for episode in episodes for turn in episode.turns]
    pairs = [
        (before.answer.text.strip(), after.answer.text.strip())
        for episode in episodes
        for before, after in zip(episode.turns, episode.turns[1:], strict=False)
    ]
    measured = of_accuracy(accuracy(episodes)) | {
        "reward/mean": float(last.mean()),
        "reward/std": float(last.std(correction=0)),
        "same_answer": sum(before == after for before, after in pairs) / max(1, len(pairs)),
        "answer/tokens": sum(len(answer.tokens) for answer in answers) / len(answers),
        "answer/cut": sum(not answer.ended for answer in answers) / len(answers),
        "prompt/cut": float(sum(episode.cut_prompts for episode in episodes)),
    }
    if any(episodes[0].hints):
        hints = hints_of(episodes)
        measured |= {
            "hint/tokens": float(hints.tokens.mean()),
            "hint/cut": sum(not hint.ended for hint in hints.completions) / len(hints.completions),
            "hint/leak": float(hints.leaked.double().mean()),
            "hint/judged": float((hints.says_right == (hints.before >= 0.5)).double().mean()),
            "hint/pay": float((hints.after - hints.before).mean()),
        }
    return measured


def tokens(episodes: Sequence[GuidedEpisode]) -> int:
    """Return the number of generated tokens."""
    return sum(len(completion.tokens) for completion in _completions(episodes))


def longest(episodes: Sequence[GuidedEpisode]) -> int:
    """Return the tokens of the longest prompt with its completion; 1 without episodes."""
    return max((len(completion.prompt) + len(completion.tokens) for completion in _completions(episodes)), default=1)


def _completions(episodes: Sequence[GuidedEpisode]) -> list[Completion]:
    completions = []
    for episode in episodes:
        completions.append(episode.turns[0].answer)
        for turn in range(1, len(episode.turns)):
            completions += [scored.answer for scored in successors(episode, turn)]
        completions += [hinted.hint for group in episode.hints for hinted in group]
    return completions


def of_values(values: CriticValues, returns: Tensor) -> dict[str, float]:
    """Return metrics of the critic's values of answers and of their correlation with the returns (N,)."""
    q, v = values.q.amin(0), values.v.mean(0)
    return {
        **{
            f"critic/{name}_{statistic}": float(getattr(heads, statistic)())
            for name, heads in (("q", q), ("v", v))
            for statistic in ("mean", "min", "max")
        },
        "critic/corr": correlation(q, returns),
    }


def correlation(left: Tensor, right: Tensor) -> float:
    """Return Pearson's correlation; 0 for a constant input."""
    a, b = left - left.mean(), right - right.mean()
    both = float((a.square().sum() * b.square().sum()).sqrt())
    return float((a * b).sum()) / both if both > 0 else 0.0


def of_training_batch(role: str, batch: TrainingBatch) -> dict[str, float]:
    """Return metrics of advantages; their mean is about 0 with an unbiased baseline."""
    return {
        f"{role}/advantage_mean": float(batch.advantage.mean()),
        f"{role}/advantage_std": float(batch.advantage.std(correction=0)),
    }


def of_policy(role: str, steps: Sequence[StepResult]) -> dict[str, float]:
    """Return metrics of a policy's updates: means of losses and norms, the rest of the last update."""
    divergence, entropy, clipped, count = steps[-1].statistics
    return of_steps(role, steps) | {
        f"{role}/kl": divergence / count,
        f"{role}/entropy": entropy / count,
        f"{role}/clipped": clipped / count,
        f"{role}/tokens": count,
    }


def of_steps(role: str, steps: Sequence[StepResult]) -> dict[str, float]:
    """Return the mean loss and gradient norm of updates, and the last loss."""
    return {
        f"{role}/loss": sum(step.loss for step in steps) / len(steps),
        f"{role}/loss_last": steps[-1].loss,
        f"{role}/grad_norm": sum(step.norm for step in steps) / len(steps),
    }


def _scores(episodes: Sequence[GuidedEpisode]) -> Tensor:
    """Return the trunks' scores (N, H)."""
    return torch.tensor([[turn.score for turn in episode.turns] for episode in episodes], dtype=torch.float64)


class MetricsFile:
    """The file metrics.jsonl. A checkpoint records its length, to which resuming truncates it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS_FILE

    @property
    def length(self) -> int:
        """Size in bytes."""
        return self._path.stat().st_size if self._path.exists() else 0

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Append a line and sync it; values that are not finite become null. Raises EnvironmentFault if the file cannot
        be written."""
        finite = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in metrics.items()
        }
        line = json.dumps(finite, separators=(",", ":")).encode() + b"\n"
        with writing(self._path), self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def truncate(self, length: int) -> None:
        """Truncate to the length in a checkpoint. Raises InputError if lines are missing."""
        if self.length < length:
            raise InputError(
                f"{self._path}: has {self.length} bytes, the checkpoint beside it knows of {length}; put "
                "it back, or remove the checkpoints to start anew"
            )
        if self.length > length:
            with writing(self._path):
                os.truncate(self._path, length)
