from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from r2v.randomness import generator
from r2v.verifier.held_out import HeldOutScores, hide_last_observation, looks_like_teacher, pooled, score_held_out
from r2v.verifier.labels import VerifierExample
from r2v.verifier.model import VerifierModel
from r2v.verifier.scores import auroc
from r2v.wire.message import Message

from . import toy

SAID = tuple(
    Message(role=role, content=content)  # type: ignore[arg-type]
    for role, content in (("user", "goal"), ("tool", "1"), ("assistant", "act"), ("tool", "2"))
)


def examples_of(count: int) -> list[VerifierExample]:
    """Two of a task: the teacher's and another."""
    base = toy.example(0, 1.0, [1])
    return [
        replace(base, task_id=f"t{at // 2}", state_id=f"t{at // 2}#0", kind="teacher" if at % 2 else "swapped_argument")
        for at in range(count)
    ]


def test_what_was_seen_last_is_blanked_and_nothing_else() -> None:
    assert [one.content for one in hide_last_observation(SAID)] == ["goal", "1", "act", ""]
    assert hide_last_observation(SAID[:1]) == SAID[:1], "nothing was shown yet"
    assert [one.role for one in hide_last_observation(SAID)] == [one.role for one in SAID]


def test_features_that_hold_who_acted_tell_it_of_other_tasks_and_random_ones_do_not() -> None:
    examples, draw = examples_of(2_000), generator("controls")
    teacher = [one.by_teacher for one in examples]
    noise = np.array([[draw.gauss(0, 1) for _ in range(4)] for _ in examples])
    told = looks_like_teacher(np.column_stack([noise, np.array(teacher) + 0.1 * noise[:, 0]]), examples)
    assert auroc(told, teacher) > 0.99  # type: ignore[arg-type, operator]
    assert auroc(looks_like_teacher(noise, examples), teacher) == pytest.approx(0.5, abs=0.05)  # type: ignore[arg-type]


def test_a_feature_that_is_the_task_tells_nothing_of_other_tasks() -> None:
    """Each task is wholly the teacher's or wholly not, and the features are its name."""
    examples = [replace(one, kind="teacher" if at // 2 % 4 < 2 else "else") for at, one in enumerate(examples_of(200))]
    names = np.repeat(np.eye(100), 2, axis=0)
    told = looks_like_teacher(names, examples)
    assert auroc(told, [one.by_teacher for one in examples]) == pytest.approx(0.5, abs=0.1)  # type: ignore[arg-type]


def test_one_kind_of_actor_has_nothing_to_tell() -> None:
    alone = [one for one in examples_of(8) if one.by_teacher]
    assert looks_like_teacher(np.ones((4, 2)), alone) is None
    read = HeldOutScores(examples=tuple(alone), logits=np.zeros(4))
    assert read.controls() == {"auroc_last_observation_hidden": None, "auroc_who_acted": None}


def test_a_verifier_that_reads_the_last_observation_falls_to_chance_without_it() -> None:
    class ReadsIds:
        """Its feature is the id before the action."""

        def features(self, rows: list[list[int]]) -> object:
            import torch

            return torch.tensor([[float(row[-2])] for row in rows])

        def score(self, states: object) -> object:
            return states[:, 0]  # type: ignore[index]

    def encode(messages: tuple[Message, ...], action: str) -> list[int]:
        return [int(messages[-1].content or "9"), 3]

    model: VerifierModel = ReadsIds()  # type: ignore[assignment]
    shown = [
        replace(one, messages=(*SAID[:3], Message(role="tool", content=str(at % 2))), target=float(at % 2))
        for at, one in enumerate(examples_of(8))
    ]
    scores = score_held_out(model, shown, encode, controls=True)
    assert auroc(scores.logits, [one.good for one in shown]) == 1.0
    assert scores.controls()["auroc_last_observation_hidden"] == 0.5
    plain = score_held_out(model, shown, encode, controls=False)
    together = pooled([scores, scores])
    assert together.controls()["auroc_last_observation_hidden"] == 0.5 and len(together.examples) == 16
    assert pooled([scores, plain]).controls() == {"auroc_last_observation_hidden": None, "auroc_who_acted": None}
