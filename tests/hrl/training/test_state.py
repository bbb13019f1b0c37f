"""The state of a training between two phases."""

from __future__ import annotations

import pytest
import torch

from r2v.hrl.algorithm.training_batch import TrainingBatch
from r2v.hrl.rollout.episode import GuidedEpisode, HintedAnswer, ScoredAnswer
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.training.state import BestActor, TrainingState
from r2v.hrl.types import Completion


def completion(text: str) -> Completion:
    return Completion(prompt=(1, 2), tokens=(3,), logprobs=(-0.5,), ended=True, version=0, text=text)


@pytest.fixture
def state() -> TrainingState:
    first, second = (ScoredAnswer(answer=completion(text), score=score) for text, score in (("7", 0.0), ("8", 1.0)))
    episode = GuidedEpisode(
        problem=Problem(id="p", text="?", answer="8"),
        turns=(first, second),
        hints=((HintedAnswer(hint=completion("look again"), after=second),),),
    )
    table = torch.zeros(1, 1, dtype=torch.float64)
    batch = TrainingBatch(advantage=torch.ones(1), beta=torch.zeros(1), behaviour=table, reference=table)
    return TrainingState(
        iteration=3, phase="advantages", episodes=[episode], batches={"actor": batch}, metrics={"reward/mean": 0.5}
    )


def same(left: TrainingState, right: TrainingState) -> bool:
    ours, theirs = left.plain(), right.plain()
    tensors = [(ours.pop("batches")["actor"], theirs.pop("batches")["actor"])]
    return ours == theirs and all(
        torch.equal(a[name], b[name]) for a, b in tensors for name in ("advantage", "beta", "behaviour", "reference")
    )


def test_a_state_is_restored_from_plain_values(state: TrainingState) -> None:
    assert same(TrainingState.of(state.plain()), state)


def test_the_best_actor_is_the_latest_of_equals_and_patience_counts_what_is_no_better() -> None:
    best = BestActor()
    assert best.note(2, 0.0) and (best.iteration, best.worse) == (2, 0)
    assert best.note(4, 0.5) and best.note(6, 0.5) and (best.iteration, best.worse) == (6, 1)
    assert not best.note(8, 0.4) and best.worse == 2
    assert best.over(2) and not best.over(3) and not best.over(None)
    assert best.report() == {"iteration": 6, "accuracy": 0.5}
