"""Effects of a design's factors on the reveal rate and the bits leaked.

In a full factorial every combination of levels is an *arm*, and every replicate plays all arms with its own secrets, so
a replicate is a block. The effect of a level is, per replicate, the mean over the arms with that level minus the mean
over those with the factor's first level; an interaction of two factors is the difference of two such differences.
Effects are means over replicates with intervals from a bootstrap over replicates and p values from flipping replicates'
signs, Holm-adjusted over all effects of a kind. So conversations of one replicate are not assumed to be independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from r2v.evaluation.measures.statistics import holm
from r2v.game.play.records import InteractionOutcome, PlayerOutcome
from r2v.game.statistics.effects import mean_difference
from r2v.game.statistics.summary import SummaryStats, grouped, player_views, rate

Levels = Mapping[str, str]
"""Factor -> level: an arm, or the part of one in a contrast."""
_MEASURES: dict[str, Callable[[PlayerOutcome], float]] = {
    "revealed": lambda player: float(player.revealed),
    "bits": lambda player: player.leaked,
}


def factor_effects(outcomes: Sequence[InteractionOutcome], levels: Mapping[str, Levels]) -> list[SummaryStats]:
    """Return, for every factor with several levels, the reveal rate and mean bits at each level, the contrasts with the
    first level, and the interactions with later factors. `levels`: agent id -> arm; agents without one (a fixed
    opponent) are not analysed."""
    factors: dict[str, list[str]] = {}
    for arm in levels.values():
        for factor, level in arm.items():
            if level not in factors.setdefault(factor, []):
                factors[factor].append(level)
    factors = {factor: values for factor, values in factors.items() if len(values) > 1}
    views = [(outcome, player) for outcome, player, _ in player_views(outcomes) if levels.get(player.agent)]
    rows: list[SummaryStats] = [
        {
            "name": factor,
            "levels": [
                _level_summary(level, [view for view in views if levels[view[1].agent][factor] == level])
                for level in values
            ],
            "contrasts": [
                {
                    "level": level,
                    "baseline": values[0],
                    **_effects(views, levels, [({factor: level}, 1), ({factor: values[0]}, -1)]),
                }
                for level in values[1:]
            ],
            "interactions": [],
        }
        for factor, values in factors.items()
    ]
    by_name = {row["name"]: row for row in rows}
    for (first, first_levels), (second, second_levels) in combinations(factors.items(), 2):
        for level in first_levels[1:]:
            for other in second_levels[1:]:
                signs = [
                    ({first: level, second: other}, 1),
                    ({first: first_levels[0], second: other}, -1),
                    ({first: level, second: second_levels[0]}, -1),
                    ({first: first_levels[0], second: second_levels[0]}, 1),
                ]
                by_name[first]["interactions"].append(
                    {"level": level, "factor": second, "other": other, **_effects(views, levels, signs)}
                )
    for kind in ("contrasts", "interactions"):
        for measure in _MEASURES:
            _adjust([effect[measure] for row in rows for effect in row[kind]])
    return rows


def _level_summary(level: str, views: Sequence[tuple[InteractionOutcome, PlayerOutcome]]) -> SummaryStats:
    bits = [player.leaked for _, player in views]
    return {
        "level": level,
        "n": len(views),
        "revealed": rate([(outcome.cluster, float(player.revealed)) for outcome, player in views]),
        "bits": float(np.mean(bits)) if bits else None,
    }


def _effects(
    views: Iterable[tuple[InteractionOutcome, PlayerOutcome]],
    levels: Mapping[str, Levels],
    signs: Sequence[tuple[Levels, int]],
) -> SummaryStats:
    """Return the signed sum of the means at these levels, for each measure. A replicate without one is left out."""
    by_replicate = grouped(views, lambda view: view[0].replicate)
    row: SummaryStats = {}
    for measure, value in _MEASURES.items():
        differences = []
        for replicate in by_replicate.values():
            players = [player for _, player in replicate]
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
    """Return the mean over the arms at these levels, all arms weighted equally; None without an arm."""
    arms: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for player in players:
        arm = levels[player.agent]
        if part.items() <= arm.items():
            arms.setdefault(tuple(sorted(arm.items())), []).append(value(player))
    return float(np.mean([np.mean(values) for values in arms.values()])) if arms else None


def _adjust(effects: Sequence[SummaryStats | None]) -> None:
    present = [effect for effect in effects if effect is not None]
    for effect, adjusted in zip(present, holm([effect["p"] for effect in present]), strict=True):
        effect["p_holm"] = adjusted
