"""The router model at run time: a score of the features, calibrated to a probability.

A router is a sorted JSON file, the same bytes from the same rows. Nothing here imports scikit-learn: its
row-by-row `predict` was the slowest part of an evaluation, and a JSON file can be read by anyone. A model of your own
(`router.model=package.module:Class`) is a dataclass of plain values with a `predict`; its fields are what is stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from r2v.data.episode import to_dict
from r2v.data.schema import from_dict
from r2v.errors import InputError
from r2v.extensions import load_class
from r2v.router.features import FEATURE_VERSION
from r2v.storage.files import write_text


def sigmoid(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)) without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


class ScoreModel(Protocol):
    """A fitted router model: a dataclass whose fields are numbers, strings, tuples and dataclasses of these."""

    def predict(self, x: Sequence[float]) -> float:
        """Return the log-odds that an LLM step gains here, or any number that grows with the gain: calibration follows.
        `x` holds the features in the order of `RouterModel.names`."""
        ...


@dataclass(frozen=True, kw_only=True)
class LinearModel:
    """A weighted sum of standardised features."""

    intercept: float
    weights: tuple[float, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]

    def predict(self, x: Sequence[float]) -> float:
        """Return the log-odds of a gain."""
        terms = zip(self.weights, x, self.means, self.scales, strict=True)
        return self.intercept + math.fsum(weight * (value - mean) / scale for weight, value, mean, scale in terms)


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A regression tree, node 0 its root. A value at most `thresholds[i]` goes left; a leaf's child is -1."""

    features: tuple[int, ...]
    thresholds: tuple[float, ...]
    lefts: tuple[int, ...]
    rights: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class BoostedModel:
    """A sum of shallow trees."""

    intercept: float
    rate: float
    trees: tuple[Tree, ...]

    def predict(self, x: Sequence[float]) -> float:
        """Return the log-odds of a gain."""
        nodes, depth, features, thresholds, lefts, rights, values = self._forest
        below = np.where(np.array(x, float).take(features) <= thresholds, lefts, rights)
        for _ in range(depth):
            nodes = below.take(nodes)
        return self.intercept + self.rate * math.fsum(values.take(nodes).tolist())

    @cached_property
    def _forest(self) -> tuple[Any, ...]:
        """Roots and depth, then arrays over the nodes of all trees, so that one comparison serves all trees: features,
        thresholds, left and right children (a leaf is its own child), values."""
        sizes = [len(tree.values) for tree in self.trees]
        roots, own = np.cumsum([0, *sizes])[:-1], np.arange(sum(sizes))

        def joined(name: str, kind: type) -> NDArray[Any]:
            return np.array([value for tree in self.trees for value in getattr(tree, name)], kind)

        def children(name: str) -> NDArray[Any]:
            below = joined(name, int)
            return np.where(below < 0, own, below + np.repeat(roots, sizes))

        lefts, rights = children("lefts"), children("rights")
        reached, depth = roots, 0
        while (lefts[reached] != reached).any():
            reached, depth = np.union1d(lefts[reached], rights[reached]), depth + 1
        features = joined("features", int).clip(0)
        return roots, depth, features, joined("thresholds", float), lefts, rights, joined("values", float)


@dataclass(frozen=True, kw_only=True)
class ConstantModel:
    """The same log-odds for every step, from labels of one class."""

    log_odds: float

    def predict(self, x: Sequence[float]) -> float:
        """Return the log-odds of a gain."""
        return self.log_odds


@dataclass(frozen=True, kw_only=True)
class Platt:
    """Calibration: p = sigmoid(slope * logit + intercept), slope > 0, so the order of states is kept."""

    slope: float = 1.0
    intercept: float = 0.0

    def __call__(self, logit: float) -> float:
        return sigmoid(self.slope * logit + self.intercept)


@dataclass(frozen=True, kw_only=True)
class CalibratedPart:
    """A fitted model with its own calibration, as one of the two parts of a blend."""

    kind: str
    part: ScoreModel
    calibration: Platt

    def log_odds(self, x: Sequence[float]) -> float:
        """Return the calibrated log-odds."""
        return self.calibration.slope * self.part.predict(x) + self.calibration.intercept


@dataclass(frozen=True, kw_only=True)
class BlendedModel:
    """Weighted sum of the calibrated log-odds of two labels of one state: where gains are rare, "the LLM would act
    otherwise" orders states better than a model of so few positives."""

    gain: CalibratedPart
    disagreement: CalibratedPart
    weight: float
    """Weight of the disagreement, in [0, 1]; the gain has the rest."""

    def predict(self, x: Sequence[float]) -> float:
        """Return the weighted sum of both log-odds."""
        return (1 - self.weight) * self.gain.log_odds(x) + self.weight * self.disagreement.log_odds(x)


@dataclass(frozen=True, kw_only=True)
class CaseSupportModel:
    """Log-odds that the teacher's nearest recorded steps act otherwise than proposed, each step weighted by its
    similarity: near 0 in a state that resembles none."""

    steps: int
    """Number of nearest steps."""

    def predict(self, x: Sequence[float]) -> float:
        """Return the log-odds that the nearest steps act otherwise, by Laplace's rule of succession. x: the share of
        them that act as proposed and their mean similarity, each in [0, 1]."""
        alike, total = self.steps * x[0] * x[1], self.steps * x[1]
        return math.log((total - alike + 1) / (alike + 1))


CONSTANT = "constant"
CASE_SUPPORT = "case_support"
BUNDLED_MODELS: dict[str, type[ScoreModel]] = {
    "logistic": LinearModel,
    "boosting": BoostedModel,
    CONSTANT: ConstantModel,
    CASE_SUPPORT: CaseSupportModel,
}
"""Model classes by the names of `router.model`; any other value is a dotted path."""


@dataclass(frozen=True, kw_only=True)
class RouterModel:
    """A trained router. `names` are the features that it reads, in order; `label` is the kind of its labels."""

    kind: str
    """As `router.model`: logistic, boosting, constant, case_support, or a dotted path."""
    label: str
    names: tuple[str, ...]
    part: ScoreModel
    calibration: Platt
    feature_version: str = FEATURE_VERSION

    def logit(self, features: Mapping[str, float]) -> float:
        """Return uncalibrated log-odds. Raises InputError where a feature that the model reads is absent."""
        try:
            return self.part.predict([features[name] for name in self.names])
        except KeyError as missing:
            group = str(missing).strip("'").partition(".")[0]
            raise InputError(
                f"router: feature {missing} is absent; group {group} was there in training and "
                "is not now (router.features, inference, verifier)"
            ) from None

    def predict(self, features: Mapping[str, float]) -> float:
        """Return the calibrated probability that asking the LLM here gains, in [0, 1], rounded to 6 decimals."""
        return round(self.calibration(self.logit(features)), 6)

    def text(self) -> str:
        """Return the model as sorted JSON."""
        record: dict[str, Any] = to_dict(self)
        if self.kind not in BUNDLED_MODELS:
            own = self.part.gain.part if isinstance(self.part, BlendedModel) else self.part
            record["part_class"] = f"{type(own).__module__}:{type(own).__qualname__}"
        return json.dumps(record, sort_keys=True, indent=1, allow_nan=False) + "\n"

    def save(self, path: Path) -> None:
        """Write the model as sorted JSON."""
        write_text(path, self.text())


def load(path: Path, configured: str | None = None) -> RouterModel:
    """Return a saved model. `configured` is `router.model`: where it is given, a file that names another user's class
    is refused before the class is imported. Raises InputError where the file is not a router, or reads features of
    another version; UsageError where its class, one of your own, cannot be imported."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        own_class = _own_class(record, configured)
        part, calibration = _part_of(record["kind"], record.pop("part"), own_class), Platt(**record.pop("calibration"))
        model = RouterModel(part=part, calibration=calibration, names=tuple(record.pop("names")), **record)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not a router ({error}); train it again") from error
    if model.feature_version != FEATURE_VERSION:
        raise InputError(
            f"{path}: reads features of version {model.feature_version}, this R2V makes "
            f"{FEATURE_VERSION}; train the router again"
        )
    return model


def _own_class(record: dict[str, Any], configured: str | None) -> type[Any] | None:
    """Return the user's class that a stored model names; None for a bundled kind. Raises ValueError where the kind is
    not the configured one."""
    if (kind := record["kind"]) in BUNDLED_MODELS:
        return None
    if configured is not None and kind != configured:
        raise ValueError(f"made by {kind}, while router.model is {configured}; nothing of it was imported")
    return load_class("router.model", str(record.pop("part_class")), (), ScoreModel)


def _part_of(kind: str, fields: dict[str, Any], own_class: type[Any] | None) -> ScoreModel:
    if set(fields) == {"gain", "disagreement", "weight"}:
        gain, disagreement = (_calibrated(fields[name], own_class) for name in ("gain", "disagreement"))
        return BlendedModel(gain=gain, disagreement=disagreement, weight=float(fields["weight"]))
    if (model_class := BUNDLED_MODELS.get(kind, own_class)) is None:
        raise ValueError(f"a part of kind {kind}, which the router itself is not of")
    part: ScoreModel = from_dict(model_class, fields)
    return part


def _calibrated(fields: dict[str, Any], own_class: type[Any] | None) -> CalibratedPart:
    part = _part_of(fields["kind"], fields["part"], own_class)
    return CalibratedPart(kind=fields["kind"], part=part, calibration=Platt(**fields["calibration"]))
