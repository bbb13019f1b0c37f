"""The seed's figures: what each agent did, and what happened overall, each with its interval.

Percentages come with Wilson's interval, which takes interactions for independent, and with a bootstrap that
draws whole pairs of secrets, which does not: conversations about the same two secrets are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from r2v.evaluation.statistics import RESAMPLES, percentile_interval, ratio_draws, resample_counts, wilson
from r2v.game.play.records import Outcome, Side

Row = dict[str, Any]


def share(count: int, total: int, clusters: Mapping[str, tuple[float, float]] | None = None) -> Row:
    """A count, its percentage and its intervals (in percent). `clusters`: per pair of secrets its part of both."""
    row: Row = {
        "count": count,
        "percent": 100 * count / total if total else None,
        "wilson": _percent(wilson(count, total)) if total else None,
    }
    if clusters is not None:
        row["bootstrap"] = _percent(cluster_interval(clusters))
    return row


def _percent(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [100 * bound for bound in interval]


def resamples(clusters: int) -> int:
    """How often a bootstrap draws so many clusters: fewer times where they are very many, and noise is small."""
    return max(400, min(RESAMPLES, 8_000_000 // max(1, clusters)))


def cluster_interval(clusters: Mapping[str, tuple[float, float]]) -> tuple[float, float] | None:
    """95 % bootstrap interval of a ratio of sums, whole clusters drawn: cluster -> (above, below the line). None
    for fewer than two clusters, where nothing can be drawn."""
    if len(clusters) < 2:
        return None
    parts = np.array([clusters[name] for name in sorted(clusters)], float)
    counts = resample_counts(len(parts), resamples(len(parts)))
    return percentile_interval(ratio_draws(parts[:, 0], parts[:, 1], counts))


def clustered(rows: Iterable[tuple[str, float]]) -> dict[str, tuple[float, float]]:
    """(cluster, value) pairs as cluster -> (sum of the values, their number)."""
    sums: dict[str, tuple[float, float]] = {}
    for cluster, value in rows:
        above, below = sums.get(cluster, (0.0, 0.0))
        sums[cluster] = above + value, below + 1
    return sums


Seat = tuple[Outcome, Side, Side]
"""A conversation seen from one of its sides: (outcome, own, other)."""


def seats(outcomes: Iterable[Outcome]) -> list[Seat]:
    """Every conversation twice, once from each side; the one that opened first."""
    return [(outcome, outcome.sides[at], outcome.sides[1 - at]) for outcome in outcomes for at in (0, 1)]


_EVENTS: dict[str, Callable[[Side], bool]] = {
    "revealed": lambda side: side.revealed,
    "obtained": lambda side: side.obtained,
    "optimal": lambda side: side.obtained and not side.revealed,
    "probably_revealed": lambda side: not side.revealed and bool(side.flags),
}


def agent_figures(name: str, taken: Sequence[Seat], incomplete: int) -> Row:
    """One agent's (or model's) row: how often it revealed, obtained, did both best, nearly revealed, bluffed."""
    row: Row = {"name": name, "interactions": len(taken), "incomplete": incomplete}
    for event, happened in _EVENTS.items():
        rows = [(outcome.cluster, float(happened(side))) for outcome, side, _ in taken]
        row[event] = share(int(sum(value for _, value in rows)), len(taken), clustered(rows))
    claims, bluffs = (sum(getattr(side, field) for _, side, _ in taken) for field in ("claims", "bluffs"))
    row["deception"] = {"claims": claims, **share(bluffs, claims)}
    return row


def overall_figures(outcomes: Sequence[Outcome], incomplete: int) -> Row:
    """All conversations together; secrets revealed are out of two per conversation."""
    number = len(outcomes)
    told = {outcome.id: sum(side.revealed for side in outcome.sides) for outcome in outcomes}
    secrets = clustered((outcome.cluster, told[outcome.id] / 2) for outcome in outcomes)
    row: Row = {
        "interactions": number,
        "incomplete": incomplete,
        "secrets_revealed": share(sum(told.values()), 2 * number, secrets),
    }
    for event, revealed in (("both", 2), ("one_sided", 1), ("none", 0)):
        rows = [(outcome.cluster, float(told[outcome.id] == revealed)) for outcome in outcomes]
        row[event] = share(int(sum(value for _, value in rows)), number, clustered(rows))
    return row


def ways_said(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many times each detector raised its flag, at most once per side of a conversation."""
    counts: dict[str, int] = {}
    for _, side, _ in seats(outcomes):
        for way in side.flags:
            counts[way] = counts.get(way, 0) + 1
    return dict(sorted(counts.items()))
