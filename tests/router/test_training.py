from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from r2v.config import RouterConfig
from r2v.errors import InputError, UsageError
from r2v.randomness import generator, uniform
from r2v.router.case_support import CASE_SCORE
from r2v.router.escalation import escalates
from r2v.router.labels import FeatureRow, labelled
from r2v.router.models import Platt, load
from r2v.router.training import fit, fit_platt, fit_routers, matrix, report, targets, task_weights
from r2v.verifier.scores import ece

from .rows import make_row, stepped_probability, true_probability

CONFIG = RouterConfig(model="logistic", features=["uncertainty", "page", "progress"])
ROWS = labelled([make_row(number) for number in range(1_200)], "counterfactual")


def saved(rows: list[FeatureRow], path: Path, config: RouterConfig = CONFIG) -> bytes:
    fit(rows, config, seed=0).save(path)
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["logistic", "boosting"])
def test_reaches_the_bayes_brier(kind: str) -> None:
    rows = labelled([make_row(number, steps_per_task=1) for number in range(20_000)], "counterfactual")
    model = fit(rows, replace(CONFIG, model=kind), seed=0)
    fresh = labelled([make_row(number, steps_per_task=1) for number in range(20_000, 30_000)], "counterfactual")
    y = targets(fresh)
    bayes = np.mean(
        [(true_probability(row.features["uncertainty.x"]) - label) ** 2 for row, label in zip(fresh, y, strict=True)]
    )
    ours = np.mean([(model.predict(row.features) - label) ** 2 for row, label in zip(fresh, y, strict=True)])
    assert abs(ours - bayes) < 0.005


def test_case_support_is_scaled_and_nothing_else(tmp_path: Path) -> None:
    """Its score falls with the share of nearest steps that act as proposed; among equal shares it is the more certain
    the nearer they are. It reads no other feature."""
    rows = [
        replace(
            row,
            features={
                **row.features,
                "cases.share": number * 7 % (11 if row.y_escalate else 21) / 20,
                "cases.similarity_mean": 0.5,
            },
        )
        for number, row in enumerate(ROWS)
    ]
    model = fit(rows, replace(CONFIG, model="case_support"), seed=0)
    assert (model.kind, model.names) == ("case_support", CASE_SCORE)

    def score(share: float, similarity: float) -> float:
        return model.predict(dict(zip(CASE_SCORE, (share, similarity), strict=True)))

    scores = [score(share / 20, 0.5) for share in range(21)]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 21
    assert score(0.0, 0.9) > score(0.0, 0.3) and score(1.0, 0.9) < score(1.0, 0.3)
    assert model.logit(dict(zip(CASE_SCORE, (0.25, 0.5), strict=True))) == pytest.approx(math.log(8.5 / 3.5))
    model.save(tmp_path / "r2v.json")
    assert load(tmp_path / "r2v.json") == model
    with pytest.raises(InputError, match=r"cases\.share"):
        fit(ROWS, replace(CONFIG, model="case_support"), seed=0)


def test_platt_recovers_the_temperature() -> None:
    draw = generator("platt")
    logits = np.array([draw.gauss(0, 3) for _ in range(20_000)])
    y = np.array([float(uniform("platt", i) < 1 / (1 + np.exp(-logit / 2))) for i, logit in enumerate(logits)])
    found = fit_platt(logits, y, np.ones_like(y))
    assert found.slope == pytest.approx(1 / 2, rel=0.05)
    assert found.intercept == pytest.approx(0, abs=0.05)


def test_row_order_does_not_matter(tmp_path: Path) -> None:
    shuffled = ROWS.copy()
    generator("shuffle").shuffle(shuffled)
    assert shuffled != ROWS
    for kind in ("logistic", "boosting"):
        config = replace(CONFIG, model=kind)  # type: ignore[arg-type]
        assert saved(ROWS, tmp_path / "a.json", config) == saved(shuffled, tmp_path / "b.json", config)


def test_leak_permuting_what_a_router_must_not_know_changes_no_byte(tmp_path: Path) -> None:
    """The perturbation of a state and the outcome of its episode are beside the features, not among them."""
    masked = [
        replace(row, perturbation_seed=None, condition="clean", slm_episode_success=not row.slm_episode_success)
        for row in ROWS
    ]
    assert saved(ROWS, tmp_path / "a.json") == saved(masked, tmp_path / "b.json")


@pytest.mark.parametrize("kind", ["logistic", "boosting"])
def test_run_time_arithmetic_equals_scikit_learn(kind: str, tmp_path: Path) -> None:
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    fit(ROWS, replace(CONFIG, model=kind), seed=0).save(tmp_path / "router.json")  # type: ignore[arg-type]
    model = load(tmp_path / "router.json")
    train = sorted((row for row in ROWS if row.split == "train"), key=lambda row: row.state_id)
    x, y, weights = matrix(train, model.names), targets(train), task_weights(train)
    if kind == "logistic":
        scaled = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
        reference = LogisticRegression(C=1.0, tol=1e-8).fit(scaled, y, sample_weight=weights).decision_function(scaled)
    else:
        reference = (
            GradientBoostingClassifier(init="zero", min_samples_leaf=20, random_state=1)
            .fit(x, y, sample_weight=weights)
            .decision_function(x)
        )
    ours = [model.logit(row.features) for row in train]
    np.testing.assert_allclose(ours, reference, atol=1e-4)


def test_every_task_weighs_the_same() -> None:
    rows = [replace(ROWS[0], task_id=task) for task in "aaab"]
    assert task_weights(rows).tolist() == [1 / 3, 1 / 3, 1 / 3, 1]


def test_report_beats_the_constant() -> None:
    figures = report(fit(ROWS, CONFIG, seed=0), ROWS)
    assert figures["calibration"]["brier"] < figures["calibration"]["brier_constant"]
    assert figures["calibration"]["auroc"] > 0.75
    assert figures["train"]["tasks"] + figures["calibration"]["tasks"] == 300


def test_absent_features_are_refused(tmp_path: Path) -> None:
    model = fit(ROWS, CONFIG, seed=0)
    with pytest.raises(InputError, match="group uncertainty"):
        model.predict({"page.noise": 0.0, "progress.constant": 3.0})
    with pytest.raises(InputError, match="no such features"):
        fit(ROWS, RouterConfig(features=["verifier"]), seed=0)
    with pytest.raises(InputError, match="absent from some rows"):
        fit([*ROWS[1:], replace(ROWS[0], features={"page.noise": 0.0})], CONFIG, seed=0)
    (tmp_path / "router.json").write_text("{}")
    with pytest.raises(InputError, match="not a router"):
        load(tmp_path / "router.json")


def test_decision_rule_at_its_ends() -> None:
    assert escalates(0.0, 0.0) and not escalates(1.0, 1.0), "p is 0 or 1 in float; the ends are exact all the same"
    assert escalates(0.4, 0.4) and not escalates(0.399999, 0.4)


def test_deciding_needs_no_scikit_learn() -> None:
    modules = ("models", "baselines", "thresholds", "labels")
    code = f"from r2v.router import {', '.join(modules)}; import sys; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_order_of_rows_does_not_matter() -> None:
    assert fit(ROWS, CONFIG, 0).part == fit(ROWS[::-1], CONFIG, 0).part


@dataclass(frozen=True, kw_only=True)
class Diverged:
    """A user's own router model whose fit failed."""

    @classmethod
    def fit(cls, features: object, labels: object, weights: object, seed: int) -> Diverged:
        return cls()

    def predict(self, x: Sequence[float]) -> float:
        return float("nan")


def test_a_fit_or_a_feature_that_is_not_finite_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="router: the fit has diverged") as refused:
        fit(ROWS, replace(CONFIG, model=f"{__name__}:Diverged"), seed=0)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    bad = replace(ROWS[7], features={**ROWS[7].features, "uncertainty.x": float("inf")})
    with pytest.raises(InputError, match=f"{bad.state_id}: feature uncertainty.x is inf"):
        fit([*ROWS[:7], bad, *ROWS[8:]], CONFIG, seed=0)


@pytest.mark.parametrize(("label", "expected"), [(0, (0 + 1) / (200 + 2)), (1, (200 + 1) / (200 + 2))])
def test_labels_of_one_class_teach_a_constant(
    label: int, expected: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By Laplace's rule of succession over the training tasks, of which these rows have 200."""
    rows = [replace(row, y_escalate=label) for row in ROWS]
    assert len({row.task_id for row in rows if row.split == "train"}) == 200
    model = fit(rows, CONFIG, seed=0)
    steps = sum(row.split == "train" for row in rows)
    assert f"{label * steps} of {steps} steps have y=1" in caplog.text
    model.save(tmp_path / "router.json")
    again = load(tmp_path / "router.json", CONFIG.model)
    assert again == model and model.kind == "constant"
    assert {again.predict(row.features) for row in rows} == {round(expected, 6)}
    assert report(model, rows)["calibration"]["auroc"] is None


def test_one_class_on_the_calibration_tasks_leaves_the_fit_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    alike = [row if row.split == "train" else replace(row, y_escalate=0) for row in ROWS]
    model = fit(alike, CONFIG, seed=0)
    assert model.part == fit(ROWS, CONFIG, seed=0).part and model.calibration == Platt()
    assert "router not calibrated, calibration labels of one class" in caplog.text


def test_a_constant_can_be_asked_for_and_is_the_base_rate() -> None:
    rows = [replace(ROWS[0], task_id=f"t{i}", y_escalate=int(i < 3), split=s) for i, s in enumerate(["train"] * 8)]
    held = [replace(ROWS[0], task_id=f"c{i}", y_escalate=i, split="calibration") for i in range(2)]
    model = fit([*rows, *held], replace(CONFIG, model="constant"), seed=0)
    assert model.predict({}) if not model.names else model.predict(ROWS[0].features) == pytest.approx(0.4, abs=1e-6)


@pytest.mark.parametrize("kind", ["logistic", "boosting"])
def test_shuffled_labels_teach_nothing(kind: str) -> None:
    rows = [make_row(number) for number in range(4_000)]
    labels = [row.q_llm for row in rows]
    generator("shuffled").shuffle(labels)
    shuffled = labelled([replace(row, q_llm=label) for row, label in zip(rows, labels, strict=True)], "counterfactual")
    auroc = report(fit(shuffled, replace(CONFIG, model=kind), seed=0), shuffled)["calibration"]["auroc"]
    assert auroc is not None and abs(auroc - 0.5) <= 0.05


@pytest.mark.parametrize("kind", ["logistic", "boosting"])
def test_probabilities_are_calibrated_on_tasks_that_nobody_fitted(kind: str) -> None:
    model = fit(ROWS, replace(CONFIG, model=kind), seed=0)
    fresh = labelled([make_row(number) for number in range(20_000, 26_000)], "counterfactual")
    scores = np.array([model.predict(row.features) for row in fresh])
    assert ece(scores, targets(fresh)) <= 0.05 and ece(scores, targets(fresh), equal_mass=True) <= 0.05


@pytest.mark.parametrize(("kind", "calibrated"), [("boosting", True), ("logistic", False)])
def test_where_two_thresholds_act_together_boosting_is_calibrated_and_no_logistic_curve(
    kind: str, calibrated: bool
) -> None:
    """On 333 tasks outside the fit; 200 were fitted and 100 scaled on."""

    def steps(first: int, count: int) -> list[FeatureRow]:
        numbers = range(first, first + count)
        return labelled([make_row(number, 12, probability=stepped_probability) for number in numbers], "counterfactual")

    model = fit(steps(0, 3_600), replace(CONFIG, model=kind), seed=0)
    fresh = steps(200_000, 4_000)
    scores = np.array([model.predict(row.features) for row in fresh])
    for equal_mass in (False, True):
        assert (ece(scores, targets(fresh), equal_mass=equal_mass) <= 0.05) == calibrated


def test_r2vs_score_is_the_weighted_sum_of_two_calibrated_log_odds(tmp_path: Path) -> None:
    rows = [make_row(number) for number in range(1_200)]
    config = replace(CONFIG, disagreement_weight=0.25)
    blend, disagreement = fit_routers(rows, config, 0)
    gain, _ = fit_routers(rows, replace(config, disagreement_weight=0.0), 0)
    blend.save(tmp_path / "r2v.json")
    assert load(tmp_path / "r2v.json") == blend
    for row in rows[::50]:
        sides = [
            model.calibration.slope * model.logit(row.features) + model.calibration.intercept
            for model in (gain, disagreement)
        ]
        assert blend.logit(row.features) == pytest.approx(0.75 * sides[0] + 0.25 * sides[1], abs=1e-9)
    assert blend.calibration.slope > 0, "calibrated on the gain's labels, so that the order of states is kept"


def test_a_blend_of_no_gains_is_the_disagreement_and_of_neither_a_constant() -> None:
    rows = [replace(make_row(number), q_llm=0.0) for number in range(400)]
    blend, disagreement = fit_routers(rows, CONFIG, 0)
    order = sorted(rows, key=lambda row: (blend.logit(row.features), row.state_id))
    assert blend.kind == disagreement.kind != "constant"
    assert [disagreement.logit(row.features) for row in order] == sorted(
        disagreement.logit(row.features) for row in rows
    )
    neither, _ = fit_routers([replace(row, disagrees=False) for row in rows], CONFIG, 0)
    assert neither.kind == "constant" and len({neither.predict(row.features) for row in rows}) == 1


@pytest.mark.parametrize("kind", ["episode", "disagreement"])
def test_only_a_gain_is_blended(kind: str) -> None:
    rows = [make_row(number) for number in range(400)]
    config = replace(CONFIG, label=kind)  # type: ignore[arg-type]
    assert fit_routers(rows, config, 0)[0] == fit(labelled(rows, kind), config, 0)  # type: ignore[arg-type]
