"""Scores per conversation in standard mode, per session in the others.

Only whole sessions count: one cut short by the schedule, or with an incomplete conversation, gave its agents fewer
chances. Others are left out, and their number is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from r2v.game.play.records import InteractionOutcome
from r2v.game.play.rules import GameMode, Holding, Rules, payoff, session_scores
from r2v.game.statistics.summary import SummaryStats, cluster_interval, cluster_sums, grouped, player_views

ScoreRows = list[tuple[str, str, float]]
"""(agent, cluster, score)."""


def standard_scores(outcomes: Sequence[InteractionOutcome], rules: Rules) -> ScoreRows:
    """Return both players' payoffs of every conversation."""
    return [
        (player.agent, outcome.cluster, payoff(rules.payoffs, player.obtained, other.obtained))
        for outcome, player, other in player_views(outcomes)
    ]


def holdings_after(outcomes: Iterable[InteractionOutcome], resell: bool) -> set[Holding]:
    """Return the (holder, owner) pairs at the end of a session. With `resell`, a secret that a speaker held before a
    conversation and gave away in it is the listener's too."""
    held: set[Holding] = set()
    for outcome in sorted(outcomes, key=lambda outcome: outcome.round):
        # Collected separately: a secret obtained in a conversation cannot be passed on in the same one.
        obtained: set[Holding] = set()
        for player, other in (outcome.players, outcome.players[::-1]):
            if player.obtained:
                obtained.add((player.agent, other.agent))
            if resell:
                obtained |= {(player.agent, owner) for owner in other.passed_on if (other.agent, owner) in held}
        held |= obtained
    return held


def accumulated_scores(
    outcomes: Sequence[InteractionOutcome], mode: GameMode, rules: Rules, agents: Sequence[str]
) -> ScoreRows:
    """Return every agent's score in every whole session; its cluster is the replicate, whose sessions share secrets."""
    num_pairs = len(agents) * (len(agents) - 1) // 2
    rows: ScoreRows = []
    for session, played in sorted(grouped(outcomes, lambda outcome: outcome.session).items()):
        if len(played) == num_pairs:
            scores = session_scores(mode, rules, agents, holdings_after(played, rules.resell), played[0].target)
            rows += [(agent, session.rstrip("ab"), score) for agent, score in scores.items()]
    return rows


def score_summary(
    outcomes: Sequence[InteractionOutcome],
    mode: GameMode,
    rules: Rules,
    agents: Sequence[str],
    models: dict[str, str],
    num_sessions: int,
) -> SummaryStats:
    """Return the mean score per agent and per model with bootstrap intervals over pairs of secrets (standard mode) or
    replicates. `models`: agent -> model; `num_sessions`: sessions begun."""
    if mode is GameMode.STANDARD:
        scores, unit, left_out = standard_scores(outcomes, rules), "interaction", 0
    else:
        scores, unit = accumulated_scores(outcomes, mode, rules, agents), "session"
        left_out = num_sessions - len(scores) // len(agents)
    return {
        "per": unit,
        "clusters": "pairs of secrets" if mode is GameMode.STANDARD else "replicates",
        "sessions_left_out": left_out,
        "agents": _means(scores),
        "models": _means((models[agent], cluster, score) for agent, cluster, score in scores),
    }


def _means(scores: Iterable[tuple[str, str, float]]) -> list[SummaryStats]:
    rows = []
    for name, named in sorted(grouped(scores, lambda row: row[0]).items()):
        values = [(cluster, score) for _, cluster, score in named]
        interval = cluster_interval(cluster_sums(values))
        rows.append(
            {
                "name": name,
                "n": len(values),
                "clusters": len({cluster for cluster, _ in values}),
                "mean": float(np.mean([score for _, score in values])),
                "total": float(sum(score for _, score in values)),
                "interval": None if interval is None else list(interval),
            }
        )
    return rows
