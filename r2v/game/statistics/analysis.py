"""Analysis of a job: summary statistics and tests as a pure function of its raw conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from r2v.game.play.records import Interaction, InteractionOutcome, outcome_of
from r2v.game.play.rules import GameMode, Rules
from r2v.game.statistics.bradley_terry import fit_strengths
from r2v.game.statistics.effects import first_mover_effect, group_by_models, one_sided_reveals, reveal_dependence
from r2v.game.statistics.factors import factor_effects
from r2v.game.statistics.power import detectable_difference
from r2v.game.statistics.scores import score_summary
from r2v.game.statistics.summary import SummaryStats, agent_summary, detector_counts, overall_summary, player_views
from r2v.game.statistics.survival import time_to_reveal


@dataclass(frozen=True, kw_only=True)
class AgentInfo:
    """An agent of a job and the name of its model."""

    id: str
    name: str
    model: str
    """The model, or the arm if the job varies factors."""
    levels: Mapping[str, str] = field(default_factory=dict)
    """Factor -> level, for the factors that the job varies."""


def outcomes_of(interactions: Sequence[Interaction], resell: bool = False) -> list[InteractionOutcome]:
    """Return the outcomes of all complete conversations, ordered by cluster and id so that no sum depends on the order
    of play. With `resell`, third parties' secrets are detected too."""
    secrets: dict[int, dict[str, str]] = {}
    for interaction in interactions:
        for player in interaction.players:
            secrets.setdefault(interaction.replicate, {})[player.agent] = player.secret
    complete = [interaction for interaction in interactions if interaction.incomplete is None]
    complete.sort(key=lambda interaction: (interaction.cluster, interaction.id))
    return [outcome_of(interaction, secrets[interaction.replicate] if resell else None) for interaction in complete]


def analyse(
    interactions: Sequence[Interaction], mode: GameMode, rules: Rules, agents: Sequence[AgentInfo]
) -> SummaryStats:
    """Return all summary statistics and tests as JSON values."""
    outcomes = outcomes_of(interactions, rules.resell)
    incomplete = [interaction for interaction in interactions if interaction.incomplete is not None]
    models = {agent.id: agent.model for agent in agents}
    by_model = _by_model(outcomes, incomplete)
    sessions = {(interaction.replicate, interaction.flipped) for interaction in interactions}
    return {
        "game_mode": mode.value,
        "overall": overall_summary(outcomes, len(incomplete)),
        "agents": _by_agent(outcomes, incomplete, agents),
        "models": by_model,
        "scores": score_summary(outcomes, mode, rules, list(models), models, len(sessions)),
        "ways": detector_counts(outcomes),
        "first_mover": first_mover_effect(outcomes),
        "dependence": {
            "all": reveal_dependence(outcomes),
            "by_pair": [
                {"a": a, "b": b, "table": reveal_dependence(group)} for (a, b), group in group_by_models(outcomes)
            ],
        },
        "who_cracks": one_sided_reveals(outcomes),
        "strengths": fit_strengths(outcomes),
        "factors": factor_effects(outcomes, {agent.id: agent.levels for agent in agents if agent.levels}),
        "time_to_reveal": time_to_reveal(outcomes),
        "detectable_difference": {
            row["name"]: detectable_difference(row["interactions"]) for row in by_model if row["interactions"]
        },
        "data": _data(interactions, incomplete),
    }


def _by_agent(
    outcomes: Sequence[InteractionOutcome], incomplete: Sequence[Interaction], agents: Sequence[AgentInfo]
) -> list[SummaryStats]:
    views = player_views(outcomes)
    num_incomplete = Counter(player.agent for interaction in incomplete for player in interaction.players)
    rows = []
    for agent in agents:
        own_views = [view for view in views if view[1].agent == agent.id]
        summary = agent_summary(agent.name, own_views, num_incomplete[agent.id])
        rows.append({"id": agent.id, "model": agent.model, **summary})
    return rows


def _by_model(outcomes: Sequence[InteractionOutcome], incomplete: Sequence[Interaction]) -> list[SummaryStats]:
    views = player_views(outcomes)
    num_incomplete = Counter(player.arm or player.model for interaction in incomplete for player in interaction.players)
    models = sorted({player.model for _, player, _ in views} | set(num_incomplete))
    return [
        agent_summary(model, [view for view in views if view[1].model == model], num_incomplete[model])
        for model in models
    ]


def _data(interactions: Sequence[Interaction], incomplete: Sequence[Interaction]) -> Mapping[str, Any]:
    secrets: dict[str, set[str]] = {}
    for interaction in interactions:
        for player in interaction.players:
            secrets.setdefault(player.agent, set()).add(player.secret)
    num_replicates = len({interaction.replicate for interaction in interactions})
    reasons = Counter(interaction.incomplete for interaction in incomplete if interaction.incomplete)
    return {
        "replicates": num_replicates,
        "pairs_of_secrets": len({interaction.cluster for interaction in interactions}),
        "fixed_secrets": num_replicates > 1 and all(len(values) == 1 for values in secrets.values()),
        "incomplete_reasons": dict(sorted(reasons.items())),
        "messages_cut_at_the_token_limit": sum(interaction.cut for interaction in interactions),
        "tokens_in": sum(interaction.tokens_in for interaction in interactions),
        "tokens_out": sum(interaction.tokens_out for interaction in interactions),
        "cost_usd": sum(interaction.cost_usd for interaction in interactions),
    }
