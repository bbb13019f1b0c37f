"""The power of a comparison of two reveal rates, and the correction of an imperfect judge's rate."""

from __future__ import annotations

import math
from statistics import NormalDist


def detectable_difference(interactions: int, rate: float = 0.5, power: float = 0.8, level: float = 0.95) -> float:
    """The smallest difference of two reveal rates around `rate` that this many conversations per arm would show:
    (z_level + z_power) sqrt(2 p (1 - p) / n). A tenth takes 392 of them, a quarter 63.
    """
    return _z(power, level) * math.sqrt(2 * rate * (1 - rate) / interactions)


def _z(power: float, level: float) -> float:
    return NormalDist().inv_cdf(0.5 + level / 2) + NormalDist().inv_cdf(power)


def rogan_gladen(apparent: float, sensitivity: float, specificity: float) -> float | None:
    """The true rate behind a judge's apparent one (Rogan and Gladen 1978), kept within [0, 1]. None for a judge that
    does no better than chance, whose count says nothing."""
    youden = sensitivity + specificity - 1
    return None if youden <= 0 else min(1.0, max(0.0, (apparent + specificity - 1) / youden))
