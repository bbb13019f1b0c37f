"""What influences a reveal: speaking first, the other's reveal, and who is facing whom.

Every pair of secrets is played both ways, so position and player come apart; a one-sided conversation is a
paired comparison of its two players (McNemar), and Holm's step-down covers all pairs of models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from r2v.evaluation.statistics import cluster_bootstrap_ci, holm, mcnemar, minimum_detectable_difference, sign_flip_p
from r2v.game.play.records import Outcome
from r2v.game.statistics.summary import Row, clustered, resamples, share


def first_mover(outcomes: Sequence[Outcome]) -> Row:
    """How much more often the one that opens gives its secret away: over pairs of secrets played both ways, the
    rate as first minus the rate as second. The matrix has every ordered pair of models."""
    balanced = [group for group in _by_cluster(outcomes).values() if len({o.sides[0].agent for o in group}) == 2]
    rates = [tuple(_mean_over_agents(group, at) for at in (0, 1)) for group in balanced]
    row: Row = {
        "as_first": _rate(outcomes, 0),
        "as_second": _rate(outcomes, 1),
        "pairs_played_both_ways": len(balanced),
        "difference": None,
    }
    if rates:
        row["difference"] = _difference([a - b for a, b in rates])
    return {**row, "matrix": ordered_matrix(outcomes)}


def _by_cluster(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.cluster, []).append(outcome)
    return groups


def _mean_over_agents(group: Sequence[Outcome], at: int) -> float:
    """The reveal rate at one seat, both agents weighing the same however often each sat there."""
    agents = {outcome.sides[at].agent for outcome in group}
    return float(
        np.mean(
            [np.mean([o.sides[at].revealed for o in group if o.sides[at].agent == agent]) for agent in sorted(agents)]
        )
    )


def _rate(outcomes: Sequence[Outcome], at: int) -> Row:
    rows = [(outcome.cluster, float(outcome.sides[at].revealed)) for outcome in outcomes]
    return share(int(sum(value for _, value in rows)), len(rows), clustered(rows))


def _difference(values: Sequence[float]) -> Row:
    """The mean over pairs of secrets, its bootstrap interval, and the p of flipping whole pairs' signs."""
    draws, error = (
        resamples(len(values)),
        float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0,
    )
    return {
        "mean": float(np.mean(values)),
        "interval": list(cluster_bootstrap_ci(values, resamples=draws)),
        "p": sign_flip_p(values, draws),
        "pairs": len(values),
        "detectable": minimum_detectable_difference(error) if error > 0 else None,
    }


def ordered_matrix(outcomes: Sequence[Outcome]) -> list[Row]:
    """For every (model that opened, model that followed): conversations, and how often each gave its secret away."""
    cells: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cells.setdefault((outcome.sides[0].model, outcome.sides[1].model), []).append(outcome)
    return [
        {
            "first": first,
            "second": second,
            "interactions": len(group),
            "first_revealed": _rate(group, 0),
            "second_revealed": _rate(group, 1),
        }
        for (first, second), group in sorted(cells.items())
    ]


def dependence(outcomes: Sequence[Outcome]) -> Row | None:
    """Do reveals come in twos? The 2x2 table (opener revealed or not, follower revealed or not), its odds ratio
    (conditional maximum likelihood, None where a margin is empty or the ratio infinite) and Fisher's exact p."""
    from scipy.stats import fisher_exact
    from scipy.stats.contingency import odds_ratio

    if not outcomes:
        return None
    table = np.zeros((2, 2), int)
    for outcome in outcomes:
        table[int(not outcome.sides[0].revealed), int(not outcome.sides[1].revealed)] += 1
    row: Row = {
        "both": int(table[0, 0]),
        "opener_only": int(table[0, 1]),
        "follower_only": int(table[1, 0]),
        "none": int(table[1, 1]),
        "odds_ratio": None,
        "interval": None,
        "p": None,
    }
    if table.sum(0).all() and table.sum(1).all():
        estimate = odds_ratio(table)
        bounds = estimate.confidence_interval(0.95)
        row |= {
            "odds_ratio": _finite(estimate.statistic),
            "interval": [_finite(bounds.low), _finite(bounds.high)],
            "p": float(fisher_exact(table).pvalue),
        }
    return row


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def by_pair(outcomes: Sequence[Outcome]) -> list[tuple[tuple[str, str], list[Outcome]]]:
    """Outcomes by their unordered pair of models."""
    pairs: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        a, b = sorted(side.model for side in outcome.sides)
        pairs.setdefault((a, b), []).append(outcome)
    return sorted(pairs.items())


def who_cracks(outcomes: Sequence[Outcome]) -> list[Row]:
    """For every pair of different models, of the conversations in which just one gave its secret away, who it was:
    McNemar's exact and mid p. `p_pairs` flips whole pairs of secrets, and so does not take conversations about the
    same secrets for independent. Both exact p are Holm-adjusted over the pairs."""
    rows: list[Row] = []
    for (a, b), group in by_pair(outcomes):
        if a == b:
            continue
        told = [{side.model: side.revealed for side in outcome.sides} for outcome in group]
        only_a, only_b = (sum(one[x] and not one[y] for one in told) for x, y in ((a, b), (b, a)))
        exact, mid = mcnemar(only_a, only_b)
        leans = clustered(
            (outcome.cluster, float(one[a]) - float(one[b])) for outcome, one in zip(group, told, strict=True)
        )
        by_pairs = sign_flip_p([above for above, _ in leans.values()], resamples(len(leans)))
        rows.append(
            {
                "a": a,
                "b": b,
                "interactions": len(group),
                "only_a": only_a,
                "only_b": only_b,
                "p": exact,
                "p_mid": mid,
                "p_pairs": by_pairs,
            }
        )
    for name in ("p", "p_pairs"):
        for row, adjusted in zip(rows, holm([row[name] for row in rows]), strict=True):
            row[f"{name}_holm"] = adjusted
    return rows
