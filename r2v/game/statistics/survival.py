"""When a secret is first given away: time is counted in a player's own messages, so that both seats compare.

A player that kept its secret to the end is censored after its last message: it may have told it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from r2v.evaluation.statistics import holm
from r2v.game.play.records import Outcome, Side
from r2v.game.statistics.summary import Row, seats


def curve(sides: Sequence[Side]) -> list[Row]:
    """Kaplan-Meier: after each own message at which somebody first gave the secret away, the share that still keeps
    it, with how many were at risk and how many fell."""
    kept, points = 1.0, [{"message": 0, "at_risk": len(sides), "revealed": 0, "kept": 1.0}]
    for message in sorted({side.revealed_at for side in sides if side.revealed_at is not None}):
        at_risk = sum((side.revealed_at or side.spoken) >= message for side in sides)
        fell = sum(side.revealed_at == message for side in sides)
        kept *= 1 - fell / at_risk
        points.append({"message": message, "at_risk": at_risk, "revealed": fell, "kept": kept})
    return points


def time_to_reveal(outcomes: Sequence[Outcome]) -> Row:
    """A curve and a median per model (None: more than half kept it), and log-rank tests between models, Holm-adjusted.
    The tests take conversations for independent."""
    by_model: dict[str, list[Side]] = {}
    for _, side, _ in seats(outcomes):
        by_model.setdefault(side.model, []).append(side)
    models = [
        {"name": model, "median": _median(points), "curve": points}
        for model, sides in sorted(by_model.items())
        for points in [curve(sides)]
    ]
    tests: list[Row] = [
        {"a": a, "b": b, "p": logrank(by_model[a], by_model[b])} for a, b in combinations(sorted(by_model), 2)
    ]
    for row, adjusted in zip(tests, holm([row["p"] for row in tests]), strict=True):
        row["p_holm"] = adjusted
    return {"models": models, "tests": tests}


def _median(points: Sequence[Row]) -> int | None:
    return next((point["message"] for point in points if point["kept"] <= 0.5), None)


def logrank(a: Sequence[Side], b: Sequence[Side]) -> float:
    """Two-sided p of the log-rank test; 1 where nobody revealed anything."""
    from scipy.stats import CensoredData, logrank

    if not any(side.revealed for side in (*a, *b)):
        return 1.0

    def data(sides: Sequence[Side]) -> object:
        return CensoredData(
            uncensored=[side.revealed_at for side in sides if side.revealed_at is not None],
            right=[side.spoken for side in sides if side.revealed_at is None],
        )

    p = float(logrank(data(a), data(b)).pvalue)
    return p if p == p else 1.0
