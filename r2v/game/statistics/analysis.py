"""Everything that is said about a job, as a pure function of its raw conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from r2v.game.play.records import Interaction, Outcome, outcome
from r2v.game.play.rules import GameMode, Rules
from r2v.game.statistics.effects import by_pair, dependence, first_mover, who_cracks
from r2v.game.statistics.power import detectable
from r2v.game.statistics.scores import score_figures
from r2v.game.statistics.strength import strengths
from r2v.game.statistics.summary import Row, agent_figures, overall_figures, seats, ways_said
from r2v.game.statistics.survival import time_to_reveal


@dataclass(frozen=True, kw_only=True)
class Seated:
    """An agent of the job, as the analysis needs it."""

    id: str
    name: str
    model: str


def outcomes_of(interactions: Sequence[Interaction], resell: bool = False) -> list[Outcome]:
    """The outcomes of all conversations that have an end, in an order that is theirs alone. With `resell`, third
    parties' secrets are looked for too."""
    secrets: dict[int, dict[str, str]] = {}
    for interaction in interactions:
        for player in interaction.players:
            secrets.setdefault(interaction.replicate, {})[player.agent] = player.secret
    ended = sorted((one for one in interactions if one.incomplete is None), key=lambda one: (one.cluster, one.id))
    return [outcome(one, secrets[one.replicate] if resell else None) for one in ended]


def analyse(interactions: Sequence[Interaction], mode: GameMode, rules: Rules, agents: Sequence[Seated]) -> Row:
    """All figures and tests, as plain values for JSON."""
    outcomes = outcomes_of(interactions, rules.resell)
    failed = [one for one in interactions if one.incomplete is not None]
    models = {agent.id: agent.model for agent in agents}
    sessions = {(one.replicate, one.flipped) for one in interactions}
    return {
        "game_mode": mode.value,
        "overall": overall_figures(outcomes, len(failed)),
        "agents": _by_agent(outcomes, failed, agents),
        "models": _by_model(outcomes, failed),
        "scores": score_figures(outcomes, mode, rules, list(models), models, len(sessions)),
        "ways": ways_said(outcomes),
        "first_mover": first_mover(outcomes),
        "dependence": {
            "all": dependence(outcomes),
            "by_pair": [{"a": a, "b": b, "table": dependence(group)} for (a, b), group in by_pair(outcomes)],
        },
        "who_cracks": who_cracks(outcomes),
        "strengths": strengths(outcomes),
        "time_to_reveal": time_to_reveal(outcomes),
        "detectable_difference": {
            row["name"]: detectable(row["interactions"]) for row in _by_model(outcomes, failed) if row["interactions"]
        },
        "data": _data(interactions, failed),
    }


def _by_agent(outcomes: Sequence[Outcome], failed: Sequence[Interaction], agents: Sequence[Seated]) -> list[Row]:
    taken = seats(outcomes)
    missed = Counter(player.agent for one in failed for player in one.players)
    return [
        {
            "id": agent.id,
            "model": agent.model,
            **agent_figures(agent.name, [seat for seat in taken if seat[1].agent == agent.id], missed[agent.id]),
        }
        for agent in agents
    ]


def _by_model(outcomes: Sequence[Outcome], failed: Sequence[Interaction]) -> list[Row]:
    taken = seats(outcomes)
    missed = Counter(player.model for one in failed for player in one.players)
    names = sorted({side.model for _, side, _ in taken} | set(missed))
    return [agent_figures(name, [seat for seat in taken if seat[1].model == name], missed[name]) for name in names]


def _data(interactions: Sequence[Interaction], failed: Sequence[Interaction]) -> Mapping[str, Any]:
    secrets: dict[str, set[str]] = {}
    for one in interactions:
        for player in one.players:
            secrets.setdefault(player.agent, set()).add(player.secret)
    replicates = len({one.replicate for one in interactions})
    return {
        "replicates": replicates,
        "pairs_of_secrets": len({one.cluster for one in interactions}),
        "fixed_secrets": replicates > 1 and all(len(values) == 1 for values in secrets.values()),
        "incomplete_reasons": dict(sorted(Counter(one.incomplete for one in failed if one.incomplete).items())),
        "messages_cut_at_the_token_limit": sum(one.cut for one in interactions),
        "tokens_in": sum(one.tokens_in for one in interactions),
        "tokens_out": sum(one.tokens_out for one in interactions),
        "cost_usd": sum(one.cost_usd for one in interactions),
    }
