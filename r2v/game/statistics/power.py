"""How many conversations a comparison needs, and how an imperfect judge's count is corrected."""

from __future__ import annotations

import math
from statistics import NormalDist


def interactions_needed(difference: float, rate: float = 0.5, power: float = 0.8, level: float = 0.95) -> int:
    """Conversations per arm to see a difference of two reveal rates around `rate`, to the nearest whole:
    2 p (1 - p) (z_level + z_power)^2 / difference^2.

    >>> interactions_needed(0.10), interactions_needed(0.25)
    (392, 63)
    """
    return round(2 * rate * (1 - rate) * (_z(power, level) / difference) ** 2)


def detectable(interactions: int, rate: float = 0.5, power: float = 0.8, level: float = 0.95) -> float:
    """The smallest difference that this many conversations per arm would show."""
    return _z(power, level) * math.sqrt(2 * rate * (1 - rate) / interactions)


def _z(power: float, level: float) -> float:
    return NormalDist().inv_cdf(0.5 + level / 2) + NormalDist().inv_cdf(power)


def rogan_gladen(apparent: float, sensitivity: float, specificity: float) -> float | None:
    """The true rate behind a judge's apparent one (Rogan and Gladen 1978), kept within [0, 1]. None for a judge that
    does no better than chance, whose count says nothing."""
    youden = sensitivity + specificity - 1
    return None if youden <= 0 else min(1.0, max(0.0, (apparent + specificity - 1) / youden))
