"""Summary statistics by agent and overall, with intervals.

Percentages have Wilson's interval, which assumes independent interactions, and a bootstrap interval over whole pairs of
secrets, which does not, since conversations about the same two secrets are alike. With fewer than `MIN_FOR_INTERVAL`
units there is no interval: that of four equal scores would have no width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from r2v.evaluation.measures.statistics import BOOTSTRAP_RESAMPLES, bootstrap_draws, percentile_interval, wilson
from r2v.game.play.records import InteractionOutcome, PlayerOutcome

MIN_FOR_INTERVAL = 5
"""Smallest number of conversations, pairs of secrets or sessions with an interval."""

T = TypeVar("T")
K = TypeVar("K")
SummaryStats = dict[str, Any]
"""A row of statistics by name, as JSON values."""


def proportion(count: int, total: int, clusters: Mapping[str, tuple[float, float]] | None = None) -> SummaryStats:
    """Return a count, its percentage and its intervals in percent. `clusters`: (count, total) per pair of secrets."""
    row: SummaryStats = {
        "count": count,
        "percent": 100 * count / total if total else None,
        "wilson": _percent(wilson(count, total)) if total >= MIN_FOR_INTERVAL else None,
    }
    if clusters is not None:
        row["bootstrap"] = _percent(cluster_interval(clusters))
    return row


def _percent(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [100 * bound for bound in interval]


def num_resamples(clusters: int) -> int:
    """Return the number of bootstrap resamples: fewer for very many clusters, whose estimates have little noise."""
    return max(400, min(BOOTSTRAP_RESAMPLES, 8_000_000 // max(1, clusters)))


def cluster_interval(clusters: Mapping[str, tuple[float, float]]) -> tuple[float, float] | None:
    """Return the 95 % cluster bootstrap interval of a ratio of sums, from cluster -> (numerator, denominator). None for
    fewer than `MIN_FOR_INTERVAL` clusters."""
    if len(clusters) < MIN_FOR_INTERVAL:
        return None
    parts = np.array([clusters[name] for name in sorted(clusters)], float)
    return percentile_interval(bootstrap_draws(parts[:, 0], parts[:, 1], num_resamples(len(parts))))


def cluster_sums(rows: Iterable[tuple[str, float]]) -> dict[str, tuple[float, float]]:
    """Return cluster -> (sum of the values, their number) from (cluster, value) pairs."""
    sums: dict[str, tuple[float, float]] = {}
    for cluster, value in rows:
        above, below = sums.get(cluster, (0.0, 0.0))
        sums[cluster] = above + value, below + 1
    return sums


def rate(rows: Sequence[tuple[str, float]]) -> SummaryStats:
    """Return the proportion of 1 among (cluster, 1 or 0) pairs."""
    return proportion(int(sum(value for _, value in rows)), len(rows), cluster_sums(rows))


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by key, the keys in the order of their first items."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


PlayerView = tuple[InteractionOutcome, PlayerOutcome, PlayerOutcome]
"""A conversation from one player's view: (outcome, own, other)."""


def player_views(outcomes: Iterable[InteractionOutcome]) -> list[PlayerView]:
    """Return every conversation from the view of both its players, the opener's first."""
    return [(outcome, outcome.players[k], outcome.players[1 - k]) for outcome in outcomes for k in (0, 1)]


_EVENTS: dict[str, Callable[[PlayerOutcome], bool]] = {
    "revealed": lambda player: player.revealed,
    "obtained": lambda player: player.obtained,
    "optimal": lambda player: player.obtained and not player.revealed,
    "probably_revealed": lambda player: not player.revealed and bool(player.flags),
}


def agent_summary(name: str, views: Sequence[PlayerView], incomplete: int) -> SummaryStats:
    """Return one agent's (or model's) row: rates of revealed, obtained, obtained without revealing (optimal) and
    probably revealed, bits leaked, and claims."""
    row: SummaryStats = {"name": name, "interactions": len(views), "incomplete": incomplete}
    for event, happened in _EVENTS.items():
        row[event] = rate([(outcome.cluster, float(happened(player))) for outcome, player, _ in views])
    claims, bluffs, half_truths = (
        sum(getattr(player, name) for _, player, _ in views) for name in ("claims", "bluffs", "half_truths")
    )
    row["deception"] = {"claims": claims, "half_truths": half_truths, **proportion(bluffs, claims)}
    row["leak"] = _leak_summary(views)
    return row


def _leak_summary(views: Sequence[PlayerView]) -> SummaryStats:
    """Return the mean bits leaked, the mean entropy of the secrets, and the rate of partial leaks. `by_message`: the
    mean after each own message; a player with fewer messages keeps the value of its last."""
    partial = [(outcome.cluster, float(player.leaked > 0 and not player.revealed)) for outcome, player, _ in views]
    longest = max((len(player.bits) for _, player, _ in views), default=0)

    def mean(number: int) -> SummaryStats:
        rows = [
            (outcome.cluster, player.bits[min(number, len(player.bits)) - 1])
            for outcome, player, _ in views
            if player.bits
        ]
        interval = cluster_interval(cluster_sums(rows))
        return {
            "mean": float(np.mean([bits for _, bits in rows])) if rows else None,
            "interval": None if interval is None else list(interval),
        }

    return {
        **mean(longest),
        "entropy": float(np.mean([player.entropy for _, player, _ in views])) if views else None,
        "partial": rate(partial),
        "by_message": [{"message": number, **mean(number)} for number in range(1, longest + 1)],
    }


def overall_summary(outcomes: Sequence[InteractionOutcome], incomplete: int) -> SummaryStats:
    """Return the statistics of all conversations; revealed secrets are out of two per conversation."""
    total = len(outcomes)
    num_revealed = {outcome.id: sum(player.revealed for player in outcome.players) for outcome in outcomes}
    secrets = cluster_sums((outcome.cluster, num_revealed[outcome.id] / 2) for outcome in outcomes)
    row: SummaryStats = {
        "interactions": total,
        "incomplete": incomplete,
        "secrets_revealed": proportion(sum(num_revealed.values()), 2 * total, secrets),
    }
    for event, revealed in (("both", 2), ("one_sided", 1), ("none", 0)):
        row[event] = rate([(outcome.cluster, float(num_revealed[outcome.id] == revealed)) for outcome in outcomes])
    return row


def detector_counts(outcomes: Iterable[InteractionOutcome]) -> dict[str, int]:
    """Return the number of firings by detector, at most one per player of a conversation."""
    counts: dict[str, int] = {}
    for _, player, _ in player_views(outcomes):
        for detector in player.flags:
            counts[detector] = counts.get(detector, 0) + 1
    return dict(sorted(counts.items()))
