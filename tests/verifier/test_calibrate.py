from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from r2v.verifier.calibrate import fit_temperature, probabilities, readings_of, report
from r2v.verifier.model import VerifierModel

from . import toy

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
    assert "the temperature ends at its bound 0.05" in caplog.text
    caplog.clear()
    assert fit_temperature([1.0, -1.0], [0.0, 1.0], [1, 1]) == pytest.approx(20.0, abs=0.01)
    assert "the temperature ends at its bound 20" in caplog.text
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
