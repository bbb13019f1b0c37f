"""Effects of a design's factors: what each level changes in the reveal rate and in the bits leaked.

In a full factorial every combination of levels is an *arm*, and every replicate plays all arms with secrets of its own,
so a replicate is a block. The effect of a level is, replicate by replicate, the mean over the arms with that level
minus the mean over those with the factor's first level; an interaction of two factors is the difference of two such
differences. Means over replicates, intervals by drawing replicates, p by flipping whole replicates' signs, Holm over
all of a kind. Conversations of one replicate are therefore not taken for independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from r2v.evaluation.measures.statistics import holm
from r2v.game.play.records import InteractionOutcome, PlayerOutcome
from r2v.game.statistics.effects import mean_difference
from r2v.game.statistics.summary import SummaryStats, cluster_sums, player_views, proportion

Levels = Mapping[str, str]
"""Factor -> level: an arm, or the part of one that a contrast is about."""
_MEASURES: dict[str, Callable[[PlayerOutcome], float]] = {
    "revealed": lambda player: float(player.revealed),
    "bits": lambda player: player.leaked,
}


def factor_effects(outcomes: Sequence[InteractionOutcome], levels: Mapping[str, Levels]) -> list[SummaryStats]:
    """For every factor with several levels: the reveal rate and mean bits at each level, the contrasts of the others
    with the first, and the interactions with the factors after it. `levels`: agent id -> its arm; agents without one
    (a fixed opponent) are no subjects."""
    factors: dict[str, list[str]] = {}
    for arm in levels.values():
        for factor, level in arm.items():
            if level not in factors.setdefault(factor, []):
                factors[factor].append(level)
    factors = {factor: found for factor, found in factors.items() if len(found) > 1}
    views = [(outcome, player) for outcome, player, _ in player_views(outcomes) if levels.get(player.agent)]
    rows: list[SummaryStats] = [
        {
            "name": factor,
            "levels": [
                _level_summary(level, [view for view in views if levels[view[1].agent][factor] == level])
                for level in found
            ],
            "contrasts": [
                {
                    "level": level,
                    "baseline": found[0],
                    **_effects(views, levels, [({factor: level}, 1), ({factor: found[0]}, -1)]),
                }
                for level in found[1:]
            ],
            "interactions": [],
        }
        for factor, found in factors.items()
    ]
    by_name = {row["name"]: row for row in rows}
    for (one, its), (two, others) in combinations(factors.items(), 2):
        for level in its[1:]:
            for other in others[1:]:
                signs = [
                    ({one: level, two: other}, 1),
                    ({one: its[0], two: other}, -1),
                    ({one: level, two: others[0]}, -1),
                    ({one: its[0], two: others[0]}, 1),
                ]
                by_name[one]["interactions"].append(
                    {"level": level, "factor": two, "other": other, **_effects(views, levels, signs)}
                )
    for kind in ("contrasts", "interactions"):
        for measure in _MEASURES:
            _adjust([effect[measure] for row in rows for effect in row[kind]])
    return rows


def _level_summary(level: str, views: Sequence[tuple[InteractionOutcome, PlayerOutcome]]) -> SummaryStats:
    rows = [(outcome.cluster, float(player.revealed)) for outcome, player in views]
    bits = [player.leaked for _, player in views]
    return {
        "level": level,
        "n": len(views),
        "revealed": proportion(int(sum(value for _, value in rows)), len(rows), cluster_sums(rows)),
        "bits": float(np.mean(bits)) if bits else None,
    }


def _effects(
    views: Iterable[tuple[InteractionOutcome, PlayerOutcome]],
    levels: Mapping[str, Levels],
    signs: Sequence[tuple[Levels, int]],
) -> SummaryStats:
    """The signed sum of the means at these levels, for each measure. A replicate that lacks one of them is left out."""
    by_replicate: dict[str, list[PlayerOutcome]] = {}
    for outcome, player in views:
        by_replicate.setdefault(outcome.replicate, []).append(player)
    row: SummaryStats = {}
    for measure, value in _MEASURES.items():
        differences = []
        for players in by_replicate.values():
            means = [_mean_over_arms(players, levels, part, value) for part, _ in signs]
            if None not in means:
                differences.append(
                    sum(sign * mean for (_, sign), mean in zip(signs, means, strict=True) if mean is not None)
                )
        row[measure] = mean_difference(differences) if differences else None
    return row


def _mean_over_arms(
    players: Iterable[PlayerOutcome],
    levels: Mapping[str, Levels],
    part: Levels,
    value: Callable[[PlayerOutcome], float],
) -> float | None:
    """The mean over the arms at these levels, all arms weighing the same however often each was played."""
    arms: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for player in players:
        arm = levels[player.agent]
        if part.items() <= arm.items():
            arms.setdefault(tuple(sorted(arm.items())), []).append(value(player))
    return float(np.mean([np.mean(values) for values in arms.values()])) if arms else None


def _adjust(effects: Sequence[SummaryStats | None]) -> None:
    found = [effect for effect in effects if effect is not None]
    for effect, adjusted in zip(found, holm([effect["p"] for effect in found]), strict=True):
        effect["p_holm"] = adjusted
