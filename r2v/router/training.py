"""Router training: full batch, every task counting the same, calibrated on tasks of its own.

Boosting is the default: on the small policy's own states it does not beat logistic regression, on the states that a
routed policy meets it does. It is scikit-learn's plain gradient boosting, because its trees can be read through a
public interface and are stored as JSON. Logistic regression is the interpretable baseline. Calibration is Platt's only:
isotonic steps merge scores, and a threshold cannot tell merged scores apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from r2v.config import RouterConfig
from r2v.errors import InputError, UsageError
from r2v.extensions import load_attribute, require_function
from r2v.log import logger
from r2v.randomness import seed_of
from r2v.router.case_support import CASE_SCORE, NEIGHBOURS
from r2v.router.features import select
from r2v.router.labels import FeatureRow, check_rows, labelled, one_class
from r2v.router.models import (
    CASE_SUPPORT,
    CONSTANT,
    BlendedModel,
    BoostedModel,
    CalibratedPart,
    CaseSupportModel,
    ConstantModel,
    LinearModel,
    Platt,
    RouterModel,
    ScoreModel,
    Tree,
)

FeatureArray = NDArray[np.float64]
SLOPES = (0.05, 20.0)
"""Bounds of Platt's slope; a fit at a bound means that calibration and training tasks disagree."""
DIGITS = 10


def fit(rows: Sequence[FeatureRow], cfg: RouterConfig, seed: int) -> RouterModel:
    """Return the router fitted to labelled rows of train tasks and calibrated on calibration tasks. The order of rows
    does not matter.

    Raises InputError or EmptyResult as `check_rows` does, InputError where rows differ in their features or one is not
    finite, and UsageError where the fit is not finite.
    """
    rows = sorted(rows, key=lambda row: row.state_id)
    check_rows(rows)
    there = {name for row in rows for name in row.features}
    names = CASE_SCORE if cfg.model == CASE_SUPPORT else select(there, cfg.features)
    if not names:
        raise InputError(f"router.features={list(cfg.features)}: the rows have no such features")
    train, held = ([row for row in rows if row.split == split] for split in ("train", "calibration"))
    label = str(rows[0].y_source)
    _require_finite_features(rows, names)
    x, y, weights = matrix(train, names), targets(train), task_weights(train)
    if alike := one_class(train):
        logger.warning("  router constant, training labels of one class: label=%s reason=%s", label, alike)
        cfg = replace(cfg, model=CONSTANT)
    part = fit_part(cfg, x, y, weights, seed)
    if cfg.model == CONSTANT:
        return RouterModel(kind=CONSTANT, label=label, names=names, part=part, calibration=Platt())
    logits = np.array([part.predict(values) for values in matrix(held, names).tolist()])
    calibration = _calibrated(logits, held) if np.isfinite(logits).all() else None
    if calibration is None or not np.isfinite([calibration.slope, calibration.intercept]).all():
        raise UsageError(
            f"router: the fit has diverged: its scores on the calibration tasks are not finite; nothing is published. "
            f"Lower router.l2 (now {cfg.l2:g}) or choose another router.model (now {cfg.model})"
        )
    return RouterModel(kind=cfg.model, label=label, names=names, part=part, calibration=calibration)


def fit_routers(rows: Sequence[FeatureRow], cfg: RouterConfig, seed: int) -> tuple[RouterModel, RouterModel]:
    """Return r2v's router and the disagreement router, from rows without labels. With `router.label=counterfactual`
    r2v's is the blend of both (`BlendedModel`), calibrated on the labels of the gain. Raises as `fit` does."""
    own = labelled(rows, cfg.label, cfg.canary_price)
    gain = fit(own, cfg, seed)
    disagreement = fit(labelled(rows, "disagreement"), replace(cfg, label="disagreement"), seed)
    if cfg.label != "counterfactual" or not cfg.disagreement_weight:
        return gain, disagreement
    part = BlendedModel(gain=_as_part(gain), disagreement=_as_part(disagreement), weight=cfg.disagreement_weight)
    held = [row for row in own if row.split == "calibration"]
    logits = np.array([part.predict(values) for values in matrix(held, gain.names).tolist()])
    both_constant = gain.kind == disagreement.kind == CONSTANT
    calibration = Platt() if both_constant else _calibrated(logits, held)
    kind = disagreement.kind if gain.kind == CONSTANT else gain.kind
    return replace(gain, kind=kind, part=part, calibration=calibration), disagreement


def _as_part(model: RouterModel) -> CalibratedPart:
    return CalibratedPart(kind=model.kind, part=model.part, calibration=model.calibration)


def _calibrated(logits: FeatureArray, held: Sequence[FeatureRow]) -> Platt:
    """Return Platt's fit on the calibration tasks; the identity where their labels hold one class."""
    if alike := one_class(held):
        logger.warning("  router not calibrated, calibration labels of one class: reason=%s", alike)
        return Platt()
    return fit_platt(logits, targets(held), task_weights(held))


def _require_finite_features(rows: Sequence[FeatureRow], names: Sequence[str]) -> None:
    for row in rows:
        for name in names:
            if name in row.features and not np.isfinite(row.features[name]):
                raise InputError(
                    f"{row.state_id}: feature {name} is {row.features[name]}; make the router features again"
                )


def fit_part(
    cfg: RouterConfig, features: FeatureArray, labels: FeatureArray, weights: FeatureArray, seed: int
) -> ScoreModel:
    """Return the score model that `router.model` names, fitted to `features` (rows, names), `labels` in {0, 1} (rows,)
    and `weights` (rows,).

    By a dotted path, a class is fitted by its `fit(features, labels, weights, seed)`, a function is called with the
    same. Raises UsageError where the result is not a dataclass with `predict`.
    """
    if cfg.model in _FITS:
        return _FITS[cfg.model](features, labels, weights, cfg, seed)
    named = load_attribute("router.model", cfg.model, tuple(_FITS))
    fits = getattr(named, "fit", named) if isinstance(named, type) else named
    parameters = ("features", "labels", "weights", "seed")
    fitted: ScoreModel = require_function("router.model", cfg.model, fits, parameters)(features, labels, weights, seed)
    if not is_dataclass(fitted) or not hasattr(fitted, "predict"):
        raise UsageError(
            f"router.model={cfg.model}: fitting gave a {type(fitted).__name__}; it has to be a dataclass of plain "
            "values with predict(x), for it is stored as JSON"
        )
    return fitted


def matrix(rows: Sequence[FeatureRow], names: Sequence[str]) -> FeatureArray:
    """Return the rows' values of these features, (rows, names). Raises InputError where one is absent."""
    try:
        return np.array([[row.features[name] for name in names] for row in rows], float)
    except KeyError as missing:
        raise InputError(f"router features: {missing} is absent from some rows; make them again") from None


def targets(rows: Sequence[FeatureRow]) -> FeatureArray:
    """Return the rows' labels, (rows,)."""
    return np.array([row.y_escalate for row in rows], float)


def task_weights(rows: Sequence[FeatureRow]) -> FeatureArray:
    """Return weights that sum to 1 within each task, (rows,)."""
    steps = Counter(row.task_id for row in rows)
    return np.array([1 / steps[row.task_id] for row in rows])


def _fit_linear(x: FeatureArray, y: FeatureArray, weights: FeatureArray, cfg: RouterConfig, seed: int) -> LinearModel:
    from sklearn.linear_model import LogisticRegression

    means = np.average(x, axis=0, weights=weights)
    spread = np.sqrt(np.average((x - means) ** 2, axis=0, weights=weights))
    scales = np.where(spread > 1e-9, spread, 1.0)
    model = LogisticRegression(C=cfg.l2, max_iter=2_000, tol=1e-8)
    model.fit((x - means) / scales, y, sample_weight=weights)
    return LinearModel(
        intercept=_rounded(model.intercept_)[0],
        weights=_rounded(model.coef_[0]),
        means=_rounded(means),
        scales=_rounded(scales),
    )


def _fit_constant(
    x: FeatureArray, y: FeatureArray, weights: FeatureArray, cfg: RouterConfig, seed: int
) -> ConstantModel:
    """Return the share of y = 1 by Laplace's rule of succession, a task counting once: (k + 1) / (n + 2)."""
    gained, total = float(weights @ y), float(weights.sum())
    return ConstantModel(log_odds=round(math.log((gained + 1) / (total - gained + 1)), DIGITS))


def _fit_boosted(x: FeatureArray, y: FeatureArray, weights: FeatureArray, cfg: RouterConfig, seed: int) -> BoostedModel:
    return _boosted(x.tobytes(), y.tobytes(), weights.tobytes(), len(x), seed)


@lru_cache(maxsize=8)
def _boosted(x: bytes, y: bytes, weights: bytes, rows: int, seed: int) -> BoostedModel:
    """Fit float64 arrays; cached, since the router stage repeats the fit of the last round of router features."""
    from sklearn.ensemble import GradientBoostingClassifier

    model = GradientBoostingClassifier(
        n_estimators=100,
        learning_rate=0.1,
        max_depth=3,
        min_samples_leaf=20,
        init="zero",
        random_state=seed_of(seed, "router") % 2**32,
    )
    model.fit(np.frombuffer(x).reshape(rows, -1), np.frombuffer(y), sample_weight=np.frombuffer(weights))
    return BoostedModel(
        intercept=0.0, rate=model.learning_rate, trees=tuple(map(exported_tree, model.estimators_[:, 0]))
    )


def exported_tree(estimator: Any) -> Tree:
    """Return a fitted regression tree of scikit-learn as plain values."""
    nodes = estimator.tree_
    return Tree(
        features=tuple(nodes.feature.tolist()),
        thresholds=_rounded(nodes.threshold),
        lefts=tuple(nodes.children_left.tolist()),
        rights=tuple(nodes.children_right.tolist()),
        values=_rounded(nodes.value[:, 0, 0]),
    )


_FITS: dict[str, Callable[[FeatureArray, FeatureArray, FeatureArray, RouterConfig, int], ScoreModel]] = {
    "logistic": _fit_linear,
    "boosting": _fit_boosted,
    CONSTANT: _fit_constant,
    CASE_SUPPORT: lambda x, y, weights, cfg, seed: CaseSupportModel(steps=NEIGHBOURS),
}


def fit_platt(logits: FeatureArray, y: FeatureArray, weights: FeatureArray) -> Platt:
    """Return the slope and intercept of least negative log-likelihood, the slope within `SLOPES`."""
    from scipy.optimize import minimize

    def loss(parameters: FeatureArray) -> tuple[float, FeatureArray]:
        z = parameters[0] * logits + parameters[1]
        residual = weights * (1 / (1 + np.exp(-np.clip(z, -500, 500))) - y)
        nll = float(np.sum(weights * (np.logaddexp(0, z) - y * z)))
        return nll / weights.sum(), np.array([residual @ logits, residual.sum()]) / weights.sum()

    best = minimize(
        loss,
        np.array([1.0, 0.0]),
        jac=True,
        method="L-BFGS-B",
        bounds=[SLOPES, (-50, 50)],
        options={"ftol": 1e-14, "gtol": 1e-10},
    )
    slope, intercept = (float(value) for value in best.x)
    if not SLOPES[0] * 1.001 < slope < SLOPES[1] * 0.999:
        logger.error(
            "  router probabilities unreliable, scores and labels of calibration tasks disagree: bounded_slope=%.3g",
            slope,
        )
    return Platt(slope=round(slope, DIGITS), intercept=round(intercept, DIGITS))


def _rounded(values: Any) -> tuple[float, ...]:
    return tuple(round(float(value), DIGITS) for value in values)


def report(model: RouterModel, rows: Sequence[FeatureRow]) -> dict[str, dict[str, float | None]]:
    """Return per split: steps, tasks, share of y = 1, AUROC (None with one class), Brier score, and the Brier score of
    always predicting that share.

    Neither split is held out: the model was fitted on the one and calibrated on the other. AUROC on calibration tasks
    is that of unseen tasks, since calibration keeps the order; their Brier score is optimistic by two fitted numbers.
    An evaluation's ECE and Brier score are of evaluation tasks.
    """
    from sklearn.metrics import roc_auc_score

    figures = {}
    for split in ("train", "calibration"):
        chosen = [row for row in rows if row.split == split]
        p, y = np.array([model.predict(row.features) for row in chosen]), targets(chosen)
        figures[split] = {
            "steps": len(chosen),
            "tasks": len({row.task_id for row in chosen}),
            "positive_share": round(float(y.mean()), 6),
            "auroc": None if one_class(chosen) else round(float(roc_auc_score(y, p)), 6),
            "brier": round(float(np.mean((p - y) ** 2)), 6),
            "brier_constant": round(float(y.mean() * (1 - y.mean())), 6),
        }
    return figures
