"""Layout of a job: secrets by replicate, ids that are never parsed, targets that are drawn."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from r2v.errors import UsageError
from r2v.game.play.players import (
    Agent,
    GPT4oMiniAgent,
    GPT35Agent,
    ModelAgent,
    current_agent,
    lifecycle_note,
    model_agent,
)
from r2v.game.play.rules import GameMode, Rules
from r2v.game.service.jobs import BatchJob, GameService, make_job

GAME = GameService(agent_service=GPT35Agent())
FOUR = [Agent(id=f"agent_{k}", name=f"Agent{k}") for k in range(4)]


def job(
    agents: list[Agent] = FOUR,
    mode: GameMode = GameMode.STANDARD,
    interactions: int = 24,
    game: GameService = GAME,
    seed: int = 0,
    service: str = "default",
) -> BatchJob:
    return make_job(
        service=service,
        game=game,
        agents=agents,
        game_mode=mode,
        num_interactions=interactions,
        messages_per_interaction=4,
        seed=seed,
        name="conversation_test",
        results=Path("results/batch_jobs"),
    )


def test_the_two_orders_of_a_pair_share_their_secrets_and_replicates_do_not() -> None:
    clusters: dict[str, set[frozenset[str]]] = {}
    for task in job().tasks:
        pair = frozenset(player.secret for player in task.interaction.players)
        clusters.setdefault(task.interaction.cluster, set()).add(pair)
    assert len(clusters) == 12 and all(len(pairs) == 1 for pairs in clusters.values())
    assert len({secret for pairs in clusters.values() for pair in pairs for secret in pair}) == 8
    assert Counter(task.interaction.cluster for task in job().tasks) == dict.fromkeys(clusters, 2)


def test_secrets_that_are_given_stay() -> None:
    one, two = Agent(id="1", name="A", secret="SECRET1"), Agent(id="2", name="B")
    held = {(p.agent, p.secret) for task in job([one, two], interactions=6).tasks for p in task.interaction.players}
    assert sum(agent == "1" for agent, _ in held) == 1 and sum(agent == "2" for agent, _ in held) == 3


def test_ids_are_safe_for_providers_and_unique() -> None:
    ids = [task.id for task in job().tasks]
    assert ids == [f"conversation_test_{k}" for k in range(24)]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one) for one in ids)


def test_an_identity_is_what_is_played() -> None:
    base = job()
    assert base.id == f"standard_default_{base.key}"
    assert job(service="openai").key == base.key, "how it is played is no part of it"
    others = [
        job(seed=1),
        job(interactions=23),
        job(mode=GameMode.DIVERSITY),
        job([*FOUR[:3], replace(FOUR[3], secret="x1")]),
        job(game=GameService(agent_service=GPT4oMiniAgent())),
        job(game=GameService(agent_service=GPT35Agent(temperature=0.5))),
        job(game=GameService(agent_service=GPT35Agent(), rules=Rules(guess=True))),
    ]
    assert len({base.key, *(other.key for other in others)}) == 1 + len(others)


def test_one_target_per_replicate_and_not_always_the_same() -> None:
    tasks = job(mode=GameMode.TARGETED, interactions=12 * 30).tasks
    targets = {(task.interaction.replicate, task.interaction.target) for task in tasks}
    assert len(targets) == 30
    assert {target for _, target in targets} == {agent.id for agent in FOUR}
    assert {task.interaction.target for task in job().tasks} == {None}


def test_models_by_the_seeds_names_and_the_tables() -> None:
    assert model_agent("gpt35") == GPT35Agent()
    assert model_agent("gpt-3.5") == GPT35Agent(), "as the seed's own line spells it"
    assert {model_agent(name).provider for name in ("claude_opus", "claude-sonnet-5-5")} == {"anthropic"}
    assert model_agent("openai:gpt-of-tomorrow") == ModelAgent(provider="openai", model="gpt-of-tomorrow")
    with pytest.raises(UsageError, match="neither an agent type nor a listed model"):
        model_agent("llama")


def test_an_agent_type_goes_on_with_its_successor_and_a_named_model_does_not() -> None:
    before, after, later = date(2026, 10, 22), date(2026, 11, 23), date(2027, 1, 14)
    assert current_agent(GPT35Agent(), before) == ModelAgent(provider="openai", model="gpt-3.5-turbo")
    assert current_agent(GPT35Agent(), after).model == "gpt-6.1-terra"
    assert current_agent(GPT4oMiniAgent(max_tokens=99), later) == ModelAgent(
        provider="openai", model="gpt-6-luna", max_tokens=99
    )
    assert lifecycle_note(GPT35Agent(), after) == (
        "gpt-3.5-turbo was retired on 2026-10-23: gpt-6.1-terra plays in its place"
    )
    assert lifecycle_note(GPT4oMiniAgent(), after) == (
        "gpt-4o-mini retires in 52 days, on 2027-01-14; its successor is gpt-6-luna"
    )
    with pytest.raises(UsageError, match="openai retired it on 2026-10-23; its successor is gpt-6.1-terra"):
        model_agent("gpt-3.5-turbo", after)
