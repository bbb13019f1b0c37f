"""Effects of position, of the other's reveal, and of the pairing on reveals.

Every pair of secrets is played in both orders, which separates position from player. A one-sided conversation is a
paired comparison of its two players (McNemar); p values are Holm-adjusted over all pairs of models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from r2v.evaluation.measures.statistics import (
    cluster_bootstrap_ci,
    holm,
    mcnemar,
    minimum_detectable_difference,
    sign_flip_p,
)
from r2v.game.play.records import InteractionOutcome
from r2v.game.statistics.summary import MIN_FOR_INTERVAL, SummaryStats, cluster_sums, grouped, num_resamples, rate


def first_mover_effect(outcomes: Sequence[InteractionOutcome]) -> SummaryStats:
    """Return the reveal rate of openers minus that of followers, over pairs of secrets played in both orders, and a
    matrix over ordered pairs of models."""
    both_ways = [
        group
        for group in grouped(outcomes, lambda outcome: outcome.cluster).values()
        if len({outcome.players[0].agent for outcome in group}) == 2
    ]
    differences = [_mean_over_agents(group, 0) - _mean_over_agents(group, 1) for group in both_ways]
    row: SummaryStats = {
        "as_first": _rate(outcomes, 0),
        "as_second": _rate(outcomes, 1),
        "pairs_played_both_ways": len(both_ways),
        "difference": None,
    }
    if differences:
        row["difference"] = mean_difference(differences)
    return {**row, "matrix": ordered_matrix(outcomes)}


def _mean_over_agents(group: Sequence[InteractionOutcome], position: int) -> float:
    """Return the reveal rate in one position (0 opened), both agents weighted equally."""
    by_agent = grouped((outcome.players[position] for outcome in group), lambda player: player.agent)
    return float(np.mean([np.mean([player.revealed for player in by_agent[agent]]) for agent in sorted(by_agent)]))


def _rate(outcomes: Sequence[InteractionOutcome], position: int) -> SummaryStats:
    return rate([(outcome.cluster, float(outcome.players[position].revealed)) for outcome in outcomes])


def mean_difference(values: Sequence[float]) -> SummaryStats:
    """Return the mean over blocks (pairs of secrets, or replicates), its bootstrap interval, and the p value of a
    sign-flip test over blocks."""
    draws = num_resamples(len(values))
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    has_interval = len(values) >= MIN_FOR_INTERVAL
    return {
        "mean": float(np.mean(values)),
        "interval": list(cluster_bootstrap_ci(values, resamples=draws)) if has_interval else None,
        "p": sign_flip_p(values, draws),
        "pairs": len(values),
        "detectable": minimum_detectable_difference(error) if error > 0 else None,
    }


def ordered_matrix(outcomes: Sequence[InteractionOutcome]) -> list[SummaryStats]:
    """Return, for every (opener's model, follower's model), the conversations and both reveal rates."""
    cells = grouped(outcomes, lambda outcome: (outcome.players[0].model, outcome.players[1].model))
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


def reveal_dependence(outcomes: Sequence[InteractionOutcome]) -> SummaryStats | None:
    """Return the dependence of a conversation's two reveals: the 2x2 table (opener revealed or not, follower revealed
    or not), its odds ratio (conditional maximum likelihood; None if a margin is empty or the ratio is infinite) and
    Fisher's exact p. None without outcomes."""
    from scipy.stats import fisher_exact
    from scipy.stats.contingency import odds_ratio

    if not outcomes:
        return None
    table = np.zeros((2, 2), int)
    for outcome in outcomes:
        table[int(not outcome.players[0].revealed), int(not outcome.players[1].revealed)] += 1
    row: SummaryStats = {
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


def group_by_models(outcomes: Sequence[InteractionOutcome]) -> list[tuple[tuple[str, str], list[InteractionOutcome]]]:
    """Return the outcomes by their unordered pair of models."""

    def models(outcome: InteractionOutcome) -> tuple[str, str]:
        a, b = sorted(player.model for player in outcome.players)
        return a, b

    return sorted(grouped(outcomes, models).items())


def one_sided_reveals(outcomes: Sequence[InteractionOutcome]) -> list[SummaryStats]:
    """Return, for every pair of different models, the conversations in which only one of them revealed, with McNemar's
    exact and mid p. `p_pairs` flips the signs of whole pairs of secrets, so it does not assume that conversations about
    the same secrets are independent. `p` and `p_pairs` are Holm-adjusted over the pairs of models."""
    rows = [_one_sided(a, b, group) for (a, b), group in group_by_models(outcomes) if a != b]
    for name in ("p", "p_pairs"):
        for row, adjusted in zip(rows, holm([row[name] for row in rows]), strict=True):
            row[f"{name}_holm"] = adjusted
    return rows


def _one_sided(a: str, b: str, outcomes: Sequence[InteractionOutcome]) -> SummaryStats:
    revealed = [{player.model: player.revealed for player in outcome.players} for outcome in outcomes]
    only_a = sum(by_model[a] and not by_model[b] for by_model in revealed)
    only_b = sum(by_model[b] and not by_model[a] for by_model in revealed)
    exact, mid = mcnemar(only_a, only_b)
    differences = cluster_sums(
        (outcome.cluster, float(by_model[a]) - float(by_model[b]))
        for outcome, by_model in zip(outcomes, revealed, strict=True)
    )
    return {
        "a": a,
        "b": b,
        "interactions": len(outcomes),
        "only_a": only_a,
        "only_b": only_b,
        "p": exact,
        "p_mid": mid,
        "p_pairs": sign_flip_p([total for total, _ in differences.values()], num_resamples(len(differences))),
    }
