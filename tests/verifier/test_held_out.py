from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from r2v.randomness import generator
from r2v.verifier.held_out import (
    HeldOutScores,
    fit_temperature,
    hide_last_observation,
    looks_like_teacher,
    pooled,
    probabilities,
    readings_of,
    report,
    score_held_out,
)
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
    """Return two examples per task: the teacher's and another."""
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
        """An encoder whose feature is the id before the action."""

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


BASE = toy.example(0, 1.0, [1])


def test_report_known_answers() -> None:
    examples = [
        replace(BASE, target=target, state_id=state)
        for target, state in ((1.0, "a"), (1.0, "b"), (0.0, "a"), (0.0, "b"))
    ]
    figures = report(examples, [0.9, 0.4, 0.6, 0.2])
    assert figures["auroc"] == 0.75
    assert figures["auroc_within_state"] == 1.0, "a: .9 > .6, b: .4 > .2"
    assert figures["ties_within_state"] == 0.0
    assert figures["auroc_length_alone"] == 0.5
    assert figures["brier"] == pytest.approx((0.01 + 0.36 + 0.36 + 0.04) / 4)
    assert figures["brier_constant"] == 0.25
    assert figures["accuracy"] == 0.5 == figures["accuracy_majority"]


def test_ties_count_a_half_and_probability_one_counts() -> None:
    examples = [replace(BASE, target=target) for target in (1.0, 0.0)]
    figures = report(examples, [1.0, 1.0])
    assert figures["ties_within_state"] == 1.0
    assert figures["auroc_within_state"] == 0.5 and figures["ece"] == 0.5 and figures["brier"] == 0.5


def test_one_class_has_no_auroc() -> None:
    figures = report([BASE, BASE], [0.2, 0.7])
    assert figures["auroc"] is None and figures["auroc_within_state"] is None
    assert figures["pr_auc"] == 1.0 and figures["accuracy_majority"] == 1.0 and figures["accuracy"] == 0.5
    bad = report([replace(BASE, target=0.0)] * 2, [0.2, 0.7])
    assert bad["auroc"] is None and bad["auroc_length_alone"] is None and bad["pr_auc"] is None
    assert bad["accuracy_majority"] == 1.0


def test_precision_over_recall_of_a_report_by_hand() -> None:
    """By score: good, bad, good, bad: (1 + 2/3) / 2."""
    examples = [replace(BASE, target=target) for target in (1.0, 1.0, 0.0, 0.0)]
    assert report(examples, [0.9, 0.4, 0.6, 0.2])["pr_auc"] == pytest.approx(0.833333)


def test_a_target_of_a_half_is_good_and_figures_have_six_decimals() -> None:
    examples = [replace(BASE, target=target, task_id=f"task-{number}") for number, target in enumerate((0.5, 0.4, 0.1))]
    figures = report(examples, [0.5, 0.499, 1 / 3])
    assert (figures["auroc"], figures["accuracy"], figures["accuracy_majority"]) == (1.0, 1.0, 0.666667)
    assert (figures["examples"], figures["tasks"]) == (3, 3)
    assert figures["brier"] == round((0.099**2 + (1 / 3 - 0.1) ** 2) / 3, 6)


def test_shortcuts_are_scores_of_their_own() -> None:
    short, long = BASE, replace(BASE, messages=(*BASE.messages, *BASE.messages))
    examples = [replace(long, target=1.0), replace(short, target=0.0)]
    figures = report(examples, [0.1, 0.2])
    assert figures["auroc_length_alone"] == 1.0 and figures["auroc_teacher_alone"] is None, "all are the teacher's"
    others = [replace(BASE, target=target, kind="swapped_argument") for target in (1.0, 0.0)]
    assert report([*examples, *others], [0.5] * 4)["auroc_teacher_alone"] == 0.5
    assert report([examples[0], *others], [0.5] * 3)["auroc_teacher_alone"] == 0.75


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_that_made_the_targets_is_the_one_that_is_fitted(temperature: float) -> None:
    logits = np.linspace(-4, 4, 33)
    targets = 1 / (1 + np.exp(-logits / temperature))
    assert fit_temperature(logits, targets, np.ones(33)) == pytest.approx(temperature, abs=1e-4)


def test_an_example_of_weight_nothing_moves_no_temperature() -> None:
    logits = np.array([-2.0, -1.0, 1.0, 2.0, 5.0])
    targets = np.array([*(1 / (1 + np.exp(-logits[:4] / 2))), 0.0])
    assert fit_temperature(logits, targets, [1, 1, 1, 1, 0]) == pytest.approx(2.0, abs=1e-4)


def test_a_temperature_at_its_bound_is_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert fit_temperature([1.0, -1.0], [1.0, 0.0], [1, 1]) == pytest.approx(0.05, abs=1e-4)
    assert "temperature=0.05" in caplog.text
    caplog.clear()
    assert fit_temperature([1.0, -1.0], [0.0, 1.0], [1, 1]) == pytest.approx(20.0, abs=0.01)
    assert "temperature=20" in caplog.text
    caplog.clear()
    fit_temperature([1.0, -1.0], [0.7, 0.3], [1, 1])
    assert caplog.text == ""


def test_a_probability_is_the_sigmoid_of_the_scaled_logit_to_six_decimals() -> None:
    assert probabilities([0.0, 2.0, -2.0], 2.0) == [0.5, 0.731059, 0.268941]
    assert probabilities([1e6, -1e6], 0.05) == [1.0, 0.0]


def test_readings_come_in_the_order_of_their_examples_however_they_are_batched() -> None:
    model = VerifierModel(toy.backbone().double())
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    examples = toy.separable(range(7))[::-1]
    with torch.inference_mode():
        alone = [model.features([toy.encode(one.messages, one.action)]) for one in examples]
    for batch in (1, 3, 64):
        read = readings_of(model, examples, toy.encode, batch)
        np.testing.assert_allclose(read.features, torch.cat(alone).numpy(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(read.logits, model.score(torch.cat(alone)).detach().numpy(), rtol=1e-9, atol=1e-12)
