"""Power of a design for a difference of two reveal rates, and the correction of an imperfect judge's rate.

`DesignPower` models the analysis of a design (`r2v.game.statistics.factors`), which tests differences of two levels
over replicates. With m observations of each level in a replicate, rates p1 and p2, and a correlation `icc` of the
observations of one replicate and level, such a difference has the variance

    v = (p1 (1 - p1) + p2 (1 - p2)) (1 + (m - 1) icc) / m

and the power of R replicates is that of a paired t test: P(|T| > t) for T of a non-central t distribution with R - 1
degrees of freedom and non-centrality (|p1 - p2| - 1 / (m R)) / sqrt(v / R). The last term is a continuity correction:
differences of shares of m are multiples of 1 / m, and sums that tie with the observed one count as extreme. The level
is divided by the number of contrasts in the design (Holm's first step), so the power is that of the hardest one.
Flipping the signs of R differences gives no p below 2^(1 - R): with too few replicates for the level, the power is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from r2v.evaluation.measures.statistics import minimum_detectable_difference

MOST_REPLICATES = 1_000_000


def detectable_difference(interactions: int) -> float:
    """Return the smallest difference of two reveal rates around a half detectable with this many conversations per arm,
    whose standard error is sqrt(2 p (1 - p) / n). A tenth needs 392 of them, a quarter 63."""
    return minimum_detectable_difference(math.sqrt(0.5 / interactions))


@dataclass(frozen=True, kw_only=True)
class DesignPower:
    """Power of one contrast of a design."""

    observations: int
    """Observations of each level in one replicate."""
    contrasts: int = 1
    """Number of contrasts in the design."""
    rate: float = 0.5
    """Reveal rate at the first level."""
    icc: float = 0.0
    """Correlation of the observations of one replicate and level."""
    level: float = 0.95
    """One minus the family-wise error rate over all contrasts."""

    def power(self, replicates: int, difference: float) -> float:
        """Return the probability of detecting this true difference of the rates. Raises ValueError if the other rate is
        outside [0, 1]."""
        from scipy.stats import nct, t

        other = self.rate + difference
        if not 0 <= other <= 1:
            raise ValueError(f"rate {self.rate} + difference {difference} is no rate")
        alpha = (1 - self.level) / self.contrasts
        if replicates < 2 or 2.0 ** (1 - replicates) > alpha:
            return 0.0
        spread = self.rate * (1 - self.rate) + other * (1 - other)
        variance = spread * (1 + (self.observations - 1) * self.icc) / self.observations
        if difference == 0 or variance == 0:
            return alpha if difference == 0 else 1.0
        bound = float(t.ppf(1 - alpha / 2, replicates - 1))
        tie = 1 / (self.observations * replicates)
        shift = max(0.0, abs(difference) - tie) / math.sqrt(variance / replicates)
        # From a shift of 4 on, the other tail is below 1e-10, and the library returns NaN for some values.
        other_tail = nct.cdf(-bound, replicates - 1, shift) if shift < 4 else 0.0
        return float(nct.sf(bound, replicates - 1, shift) + other_tail)

    def replicates_for(self, difference: float, power: float = 0.8) -> int | None:
        """Return the smallest number of replicates with this power; None: more than `MOST_REPLICATES`."""
        low, high = 1, 2
        while self.power(high, difference) < power:
            low, high = high, 2 * high
            if high > MOST_REPLICATES:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.power(middle, difference) >= power else (middle, high)
        return high

    def detectable(self, replicates: int, power: float = 0.8) -> float | None:
        """Return the smallest difference, away from the nearer end of [0, 1], detected with this power; None: none."""
        sign = 1 if self.rate <= 0.5 else -1
        low, high = 0.0, max(self.rate, 1 - self.rate)
        if self.power(replicates, sign * high) < power:
            return None
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self.power(replicates, sign * middle) >= power else (middle, high)
        return high


def rogan_gladen(apparent: float, sensitivity: float, specificity: float) -> float | None:
    """Return the true rate estimated from a judge's apparent one (Rogan and Gladen 1978), clipped to [0, 1]. None for a
    judge no better than chance."""
    youden = sensitivity + specificity - 1
    return None if youden <= 0 else min(1.0, max(0.0, (apparent + specificity - 1) / youden))
