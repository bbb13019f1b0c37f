"""Survival analysis of secrets: the time until one is given away, by Kaplan-Meier curves and log-rank tests.

Time is counted in a player's own messages, so that the one that opened and the one that followed compare. A player
that kept its secret to the end is right-censored after its last message: it might have given it away later.

Bands are Greenwood's: the variance of the curve S is S^2 times the sum of d / (n (n - d)) over the times so far, d of n
at risk having given it away; the interval is taken on the scale of log(-log S), which keeps it within 0 and 1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from r2v.evaluation.measures.statistics import holm
from r2v.game.play.records import InteractionOutcome, PlayerOutcome
from r2v.game.statistics.summary import MIN_FOR_INTERVAL, SummaryStats, player_views


def kaplan_meier(players: Sequence[PlayerOutcome]) -> list[SummaryStats]:
    """The survival curve: after each own message at which somebody first gave the secret away, the share that still
    keeps it, how many were at risk and how many of them gave it away, Greenwood's standard error and the 95 % interval
    (None where nobody or everybody has given it away, and for fewer than `MIN_FOR_INTERVAL` players). Begins at message
    0."""
    from scipy.stats import ecdf

    start = {"message": 0, "at_risk": len(players), "revealed": 0, "kept": 1.0, "error": 0.0, "interval": None}
    points: list[SummaryStats] = [start]
    curve = ecdf(_censored(players)).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that there is no band at 0 and at 1
        bands = curve.confidence_interval(confidence_level=0.95, method="log-log")
    variance = 0.0
    for message in sorted({player.revealed_at for player in players if player.revealed_at is not None}):
        at_risk = sum((player.revealed_at or player.num_messages) >= message for player in players)
        revealed = sum(player.revealed_at == message for player in players)
        kept = float(curve.evaluate(message))
        variance += revealed / (at_risk * (at_risk - revealed)) if kept else 0.0
        band = [float(bands.low.evaluate(message)), float(bands.high.evaluate(message))]
        points.append(
            {
                "message": message,
                "at_risk": at_risk,
                "revealed": revealed,
                "kept": kept,
                "error": kept * math.sqrt(variance) if kept else None,
                "interval": band if kept and len(players) >= MIN_FOR_INTERVAL else None,
            }
        )
    return points


def time_to_reveal(outcomes: Sequence[InteractionOutcome]) -> SummaryStats:
    """A curve and a median per model (None: more than half kept it), and log-rank tests between models, Holm-adjusted.
    The tests take conversations for independent."""
    by_model: dict[str, list[PlayerOutcome]] = {}
    for _, player, _ in player_views(outcomes):
        by_model.setdefault(player.model, []).append(player)
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
                "median": _median(curve),
                "last_message": max(player.num_messages for player in by_model[model]),
                "curve": curve,
            }
            for model, curve in curves.items()
        ],
        "tests": tests,
    }


def _median(curve: Sequence[SummaryStats]) -> int | None:
    return next((point["message"] for point in curve if point["kept"] <= 0.5 + 1e-12), None)  # rounded products


def logrank_p(a: Sequence[PlayerOutcome], b: Sequence[PlayerOutcome]) -> float:
    """Two-sided p of the log-rank test; 1 where nobody revealed anything."""
    from scipy.stats import logrank

    if not any(player.revealed for player in (*a, *b)):
        return 1.0
    p = float(logrank(_censored(a), _censored(b)).pvalue)
    # NaN where the test statistic has no variance: all reveals at a time when only one group was left
    return p if p == p else 1.0


def _censored(players: Sequence[PlayerOutcome]) -> Any:
    from scipy.stats import CensoredData

    return CensoredData(
        uncensored=[player.revealed_at for player in players if player.revealed_at is not None],
        right=[player.num_messages for player in players if player.revealed_at is None],
    )
