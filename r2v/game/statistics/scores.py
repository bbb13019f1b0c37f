"""What the conversations paid: by the conversation in standard mode, by the session in the others.

A session counts only whole: one that the schedule cut short, or in which a conversation could not be played to
its end, gave its agents fewer chances than the rest and is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from r2v.game.play.records import Outcome
from r2v.game.play.rules import GameMode, Holding, Rules, payoff, session_scores
from r2v.game.statistics.summary import Row, cluster_interval, clustered, seats

Scores = list[tuple[str, str, float]]
"""(agent, cluster, score)."""


def standard_scores(outcomes: Sequence[Outcome], rules: Rules) -> Scores:
    """Every conversation's pay, twice."""
    return [
        (side.agent, outcome.cluster, payoff(rules.payoffs, side.obtained, other.obtained))
        for outcome, side, other in seats(outcomes)
    ]


def held_after(outcomes: Iterable[Outcome], resell: bool) -> set[Holding]:
    """Who holds whose secret at the end of a session. With `resell`, what a speaker held before the conversation
    and said in it is the listener's too."""
    held: set[Holding] = set()
    for outcome in sorted(outcomes, key=lambda one: one.round):
        new: set[Holding] = set()
        for side, other in (outcome.sides, outcome.sides[::-1]):
            if side.obtained:
                new.add((side.agent, other.agent))
            if resell:
                new |= {(side.agent, owner) for owner in other.passed_on if (other.agent, owner) in held}
        held |= new
    return held


def accumulated_scores(outcomes: Sequence[Outcome], mode: GameMode, rules: Rules, agents: Sequence[str]) -> Scores:
    """Every agent's score in every whole session."""
    full = len(agents) * (len(agents) - 1) // 2
    return [
        (agent, session.rstrip("ab"), score)
        for session, played in sorted(_sessions(outcomes).items())
        if len(played) == full
        for agent, score in session_scores(
            mode, rules, agents, held_after(played, rules.resell), played[0].target
        ).items()
    ]


def _sessions(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    sessions: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        sessions.setdefault(outcome.session, []).append(outcome)
    return sessions


def score_figures(
    outcomes: Sequence[Outcome], mode: GameMode, rules: Rules, agents: Sequence[str], models: dict[str, str], begun: int
) -> Row:
    """Mean score per agent and per model with bootstrap intervals over pairs of secrets (standard) or replicates.
    `models` tells each agent's; `begun` is the number of sessions that were begun."""
    if mode is GameMode.STANDARD:
        scores, per, left_out = standard_scores(outcomes, rules), "interaction", 0
    else:
        scores, per = accumulated_scores(outcomes, mode, rules, agents), "session"
        left_out = begun - len(scores) // len(agents)
    return {
        "per": per,
        "sessions_left_out": left_out,
        "agents": _means(scores),
        "models": _means((models[agent], cluster, score) for agent, cluster, score in scores),
    }


def _means(scores: Iterable[tuple[str, str, float]]) -> list[Row]:
    by_name: dict[str, list[tuple[str, float]]] = {}
    for name, cluster, score in scores:
        by_name.setdefault(name, []).append((cluster, score))
    rows = []
    for name, values in sorted(by_name.items()):
        interval = cluster_interval(clustered(values))
        rows.append(
            {
                "name": name,
                "n": len(values),
                "mean": float(np.mean([score for _, score in values])),
                "total": float(sum(score for _, score in values)),
                "interval": None if interval is None else list(interval),
            }
        )
    return rows
