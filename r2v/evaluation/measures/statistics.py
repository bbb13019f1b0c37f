"""Statistics: bootstrap intervals and permutation tests. The unit is the task; a task's value is its mean over seeds.

Episodes of one task under several seeds are correlated, so nothing here treats them as independent: the
bootstrap draws whole tasks, the permutation test flips the sign of a whole task's difference. A rate such as
LLM calls per step is a ratio of two sums over tasks, and so is a mean (its denominator counts tasks), so one
bootstrap serves every figure. All methods share the same resamples, which makes their differences paired.
Cells without a failure (or without a success) have no spread to resample: they get Wilson's interval.
Random draws are keyed (`r2v.randomness`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from r2v.randomness import seed_of

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Interval = tuple[float, float]

BOOTSTRAP_RESAMPLES = 10_000
_BLOCK = 1 << 17
"""Random numbers that are in memory at once, at most: their count grows with samples times tasks."""
_KEPT = 64 << 20
"""Bytes of tables of resamples that are kept for the next figure; larger tables are drawn anew for each."""
EXACT_UP_TO = 20
"""Sign-flip tests enumerate all sign vectors up to this many tasks that differ."""


def wilson(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Wilson's score interval for a proportion; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share, z = successes / trials, NormalDist().inv_cdf(0.5 + level / 2)
    scale, middle = 1 + z * z / trials, share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes == 0 else (middle - half) / scale
    return low, 1.0 if successes == trials else (middle + half) / scale


_tables: dict[tuple[int, int, str], NDArray[np.uint8]] = {}
"""Tables of `resample_counts`, the oldest first, `_KEPT` bytes in all."""


def resample_counts(num_tasks: int, resamples: int = BOOTSTRAP_RESAMPLES, key: str = "bootstrap") -> NDArray[np.uint8]:
    """Counts of each task in each bootstrap sample, uint8, (resamples, num_tasks). A byte holds a count: always with up
    to 255 tasks, and with more but for chances below 1e-500."""
    if (table_key := (num_tasks, resamples, key)) in _tables:
        return _tables[table_key]
    while _tables and sum(table.nbytes for table in _tables.values()) + num_tasks * resamples > _KEPT:
        del _tables[next(iter(_tables))]
    counts = np.empty((resamples, num_tasks), np.uint8)
    for rows, block in zip(_blocks(resamples, num_tasks), _drawn(num_tasks, resamples, key), strict=True):
        counts[rows] = block
    counts.flags.writeable = False
    if counts.nbytes <= _KEPT:
        _tables[table_key] = counts
    return counts


def _drawn(num_tasks: int, resamples: int, key: str) -> Iterator[NDArray[np.int64]]:
    """The table of resamples, block by block."""
    rng = np.random.default_rng(seed_of(key, num_tasks, resamples))
    for rows in _blocks(resamples, num_tasks):
        size = rows.stop - rows.start
        drawn = rng.integers(num_tasks, size=(size, num_tasks))
        drawn += np.arange(size)[:, None] * num_tasks
        yield np.bincount(drawn.ravel(), minlength=size * num_tasks).reshape(drawn.shape)


def _blocks(count: int, width: int) -> Iterator[slice]:
    """Slices that cover `count` rows of `width` numbers, a few MB each and none of a single row: numpy sums that in
    another order."""
    parts = min(max(1, count // 2), math.ceil(count * width / _BLOCK))
    bounds = [count * part // parts for part in range(parts + 1)]
    yield from (slice(first, last) for first, last in pairwise(bounds) if last > first)


def ratio_draws(numerator: ArrayLike, denominator: ArrayLike, counts: NDArray[Any]) -> FloatArray:
    """The ratio of sums in every bootstrap sample; NaN where a sample's denominator is 0. For inputs of shape
    (tasks,) or (tasks, k): (resamples,) or (resamples, k)."""
    above, below = (_sums(np.asarray(part, float), counts) for part in (numerator, denominator))
    draws: FloatArray = np.where(below > 0, above, np.nan) / below
    return draws


def bootstrap_draws(
    numerator: ArrayLike,
    denominator: ArrayLike,
    resamples: int = BOOTSTRAP_RESAMPLES,
    key: str = "bootstrap",
) -> FloatArray:
    """`ratio_draws` over the resamples of these tasks, of which no table is made that is too large to be kept."""
    num_tasks = len(np.asarray(numerator))
    if num_tasks * resamples <= _KEPT:
        return ratio_draws(numerator, denominator, resample_counts(num_tasks, resamples, key))
    return np.concatenate([ratio_draws(numerator, denominator, block) for block in _drawn(num_tasks, resamples, key)])


def _sums(values: FloatArray, counts: NDArray[Any]) -> FloatArray:
    # einsum, not BLAS: one order of summation on every machine, and no threads to wait for
    parts = [np.einsum("bt,t...->b...", counts[rows].astype(np.float64), values) for rows in _blocks(*counts.shape)]
    return np.concatenate(parts) if parts else np.empty((0, *values.shape[1:]))


def percentile_interval(draws: FloatArray, level: float = 0.95) -> Interval | None:
    """The central `level` of bootstrap draws. None where more than 5 % of them are undefined."""
    defined = draws[np.isfinite(draws)]
    if len(defined) < 0.95 * len(draws):
        return None
    low, high = np.percentile(defined, [50 - 50 * level, 50 + 50 * level])
    return float(low), float(high)


def cluster_bootstrap_ci(
    values: ArrayLike, level: float = 0.95, resamples: int = BOOTSTRAP_RESAMPLES, key: str = "bootstrap"
) -> Interval:
    """Percentile interval of the mean over tasks, drawn whole. `values`: (tasks,) or (tasks, seeds)."""
    per_task = _per_task(values)
    interval = percentile_interval(bootstrap_draws(per_task, np.ones_like(per_task), resamples, key), level)
    assert interval is not None
    return interval


def _per_task(values: ArrayLike) -> FloatArray:
    array = np.asarray(values, float)
    return array if array.ndim == 1 else array.mean(axis=1)


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """Mean of a - b over tasks. `effect_size` is that mean in standard deviations of the differences,
    `detectable` the smallest difference seen with 80 % power; both None where no task differs."""

    difference: float
    standard_error: float
    interval: Interval
    p_value: float
    effect_size: float | None
    detectable: float | None
    num_tasks: int


def paired_difference(
    a: ArrayLike, b: ArrayLike, level: float = 0.95, resamples: int = BOOTSTRAP_RESAMPLES, key: str = "bootstrap"
) -> PairedDifference:
    """Compare two methods on the same tasks; `a`, `b`: (tasks,) or (tasks, seeds)."""
    differences = _per_task(a) - _per_task(b)
    mean, n = float(differences.mean()), len(differences)
    spread = float(differences.std(ddof=1)) if n > 1 else 0.0
    error = spread / math.sqrt(n)
    return PairedDifference(
        difference=mean,
        standard_error=error,
        interval=cluster_bootstrap_ci(differences, level, resamples, key),
        p_value=sign_flip_p(differences),
        effect_size=mean / spread if spread > 0 else None,
        detectable=minimum_detectable_difference(error, level) if error > 0 else None,
        num_tasks=n,
    )


def sign_flip_p(differences: ArrayLike, draws: int = 10_000, key: str = "sign-flip") -> float:
    """Two-sided p that tasks' differences are symmetric about 0. Exact where at most 20 tasks differ, else
    from `draws` keyed sign vectors with the observed one counted in, so never 0."""
    nonzero = np.asarray(differences, float)
    nonzero = nonzero[nonzero != 0]
    bound = abs(nonzero.sum()) - 1e-9
    if len(nonzero) <= EXACT_UP_TO:
        sums = np.zeros(1)
        for value in nonzero:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= bound))
    rng = np.random.default_rng(seed_of(key, len(nonzero), draws))
    extreme = 0
    for rows in _blocks(draws, len(nonzero)):
        signs = rng.integers(2, size=(rows.stop - rows.start, len(nonzero))) * 2.0 - 1.0
        extreme += int(np.sum(np.abs(signs @ nonzero) >= bound))
    return float((1 + extreme) / (1 + draws))


def bootstrap_p(draws: ArrayLike) -> float:
    """Two-sided p that a difference is 0, from its bootstrap draws (undefined ones left out): twice the share on the
    rarer side of 0, with one more draw counted there, so never 0. It is at most .05 where the percentile interval of
    95 % leaves 0 out, but for that one draw."""
    defined = np.asarray(draws, float)
    defined = defined[np.isfinite(defined)]
    rarer = min(int(np.sum(defined <= 0)), int(np.sum(defined >= 0)))
    return min(1.0, 2 * (1 + rarer) / (1 + len(defined)))


def minimum_detectable_difference(standard_error: float, level: float = 0.95, power: float = 0.8) -> float:
    """The true difference that a two-sided test at `level` finds with probability `power`."""
    return (NormalDist().inv_cdf(0.5 + level / 2) + NormalDist().inv_cdf(power)) * standard_error


def mcnemar(only_a: int, only_b: int) -> tuple[float, float]:
    """(exact p, mid-p) from the tasks that only a, or only b, solved. One run per task only."""
    trials, fewer = only_a + only_b, min(only_a, only_b)
    if trials == 0:
        return 1.0, 1.0
    ways = [math.comb(trials, count) for count in range(fewer + 1)]  # of 2 ** trials, in whole numbers
    return min(1.0, 2 * sum(ways) / 2**trials), min(1.0, (2 * sum(ways) - ways[-1]) / 2**trials)


def holm(p_values: ArrayLike) -> list[float]:
    """Holm's step-down adjustment, in the order given."""
    raw = np.asarray(p_values, float)
    order = np.argsort(raw, kind="stable")
    stepped = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1))
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(1.0, stepped)
    return [float(p) for p in adjusted]


def cvar(losses: ArrayLike, alpha: float) -> float:
    """Mean of the worst share `alpha` of losses, counting a fraction of the loss on the border."""
    worst_first = np.sort(np.asarray(losses, float))[::-1]
    weights = np.clip(alpha * len(worst_first) - np.arange(len(worst_first)), 0, 1)
    return float(worst_first @ weights / weights.sum())
