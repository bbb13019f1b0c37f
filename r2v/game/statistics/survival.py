"""Survival analysis of secrets: time to reveal by Kaplan-Meier curves and log-rank tests.

Time is counted in a player's own messages, which makes openers and followers comparable. A player that kept its secret
is right-censored after its last message: it might have revealed it later.

Bands are Greenwood's: the variance of the curve S is S^2 times the sum of d / (n (n - d)) over the times so far, with d
reveals among n at risk. Intervals are taken on the scale of log(-log S), which keeps them within 0 and 1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from r2v.evaluation.measures.statistics import holm
from r2v.game.play.records import InteractionOutcome, PlayerOutcome
from r2v.game.statistics.summary import MIN_FOR_INTERVAL, SummaryStats, grouped, player_views


def kaplan_meier(players: Sequence[PlayerOutcome]) -> list[SummaryStats]:
    """Return the survival curve: at message 0 and at each own message with a first reveal, the share that still keeps
    the secret, the numbers at risk and of reveals, Greenwood's standard error and the 95 % interval (None at 0 and 1,
    and for fewer than `MIN_FOR_INTERVAL` players)."""
    from scipy.stats import ecdf

    start = {"message": 0, "at_risk": len(players), "revealed": 0, "kept": 1.0, "error": 0.0, "interval": None}
    points: list[SummaryStats] = [start]
    curve = ecdf(_censored(players)).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy warns that 0 and 1 have no band
        bands = curve.confidence_interval(confidence_level=0.95, method="log-log")
    variance = 0.0
    for message in sorted({player.revealed_at for player in players if player.revealed_at is not None}):
        at_risk = sum((player.revealed_at or player.num_messages) >= message for player in players)
        revealed = sum(player.revealed_at == message for player in players)
        share = float(curve.evaluate(message))
        variance += revealed / (at_risk * (at_risk - revealed)) if share else 0.0
        band = [float(bands.low.evaluate(message)), float(bands.high.evaluate(message))]
        points.append(
            {
                "message": message,
                "at_risk": at_risk,
                "revealed": revealed,
                "kept": share,
                "error": share * math.sqrt(variance) if share else None,
                "interval": band if share and len(players) >= MIN_FOR_INTERVAL else None,
            }
        )
    return points


def time_to_reveal(outcomes: Sequence[InteractionOutcome]) -> SummaryStats:
    """Return a curve and a median per model (None: more than half kept the secret), and Holm-adjusted log-rank tests
    between models, which assume independent conversations."""
    by_model = grouped((player for _, player, _ in player_views(outcomes)), lambda player: player.model)
    curves = {model: kaplan_meier(players) for model, players in sorted(by_model.items())}
    tests: list[SummaryStats] = [
        {"a": a, "b": b, "p": logrank_p(by_model[a], by_model[b])} for a, b in combinations(sorted(by_model), 2)
    ]
    for row, adjusted in zip(tests, holm([row["p"] for row in tests]), strict=True):
        row["p_holm"] = adjusted
    return {
        "models": [
            {
                "name": model,
                # the curve's values are rounded products
                "median": next((point["message"] for point in curve if point["kept"] <= 0.5 + 1e-12), None),
                "last_message": max(player.num_messages for player in by_model[model]),
                "curve": curve,
            }
            for model, curve in curves.items()
        ],
        "tests": tests,
    }


def logrank_p(a: Sequence[PlayerOutcome], b: Sequence[PlayerOutcome]) -> float:
    """Return the two-sided p of the log-rank test; 1 without any reveal."""
    from scipy.stats import logrank

    if not any(player.revealed for player in (*a, *b)):
        return 1.0
    p = float(logrank(_censored(a), _censored(b)).pvalue)
    # NaN if the statistic has no variance: all reveals at a time when only one group was left.
    return p if p == p else 1.0


def _censored(players: Sequence[PlayerOutcome]) -> Any:
    from scipy.stats import CensoredData

    return CensoredData(
        uncensored=[player.revealed_at for player in players if player.revealed_at is not None],
        right=[player.num_messages for player in players if player.revealed_at is None],
    )
