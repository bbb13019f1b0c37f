"""Batch jobs, their tasks and their status.

A job is a list of tasks, a task is one conversation. A job's identity covers agents, models, mode, rules, length and
seed, not the dispatch: the same job created again has the same id, secrets and requests, and finds paid replies in its
journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from r2v.errors import UsageError
from r2v.game.detection.leaks import passphrases
from r2v.game.detection.normalize import normalize
from r2v.game.play.pairing import Meeting, schedule
from r2v.game.play.player_prompts import RememberedConversation, system_prompt
from r2v.game.play.players import Agent, ModelAgent, current_agent
from r2v.game.play.records import Interaction, Player
from r2v.game.play.rules import GameMode, Rules, check_rules
from r2v.game.statistics.analysis import AgentInfo
from r2v.randomness import digest, generator

BatchStatus = Literal["pending", "running", "completed", "failed"]
"""Status of a task or a job. A failed task's conversation could not be played to its end (`Interaction.incomplete` has
the reason). A failed job was ended by an error, or none of its conversations was played to its end. Tasks stopped
midway by an error or an interruption are pending again."""


@dataclass(frozen=True, kw_only=True)
class GameService:
    """Rules of a game, and the model of agents without their own."""

    agent_service: ModelAgent
    rules: Rules = field(default_factory=Rules)

    def model_of(self, agent: Agent) -> ModelAgent:
        """Return the model that plays an agent, or the successor of its type's model. Raises UsageError for a retired
        model named directly."""
        return current_agent(agent.service or self.agent_service)


@dataclass(kw_only=True)
class BatchTask:
    """A conversation to be played, and its status."""

    interaction: Interaction
    """Set-up of the conversation."""
    after: tuple[str, ...] = ()
    """Ids of the tasks that must end first, because this one's players remember them."""
    status: BatchStatus = "pending"

    @property
    def id(self) -> str:
        """Return the conversation's id."""
        return self.interaction.id


@dataclass(kw_only=True)
class BatchJob:
    """A list of tasks with their results and the job's status."""

    id: str
    key: str
    """Key of every random draw of the job, independent of the service."""
    agents: tuple[Agent, ...]
    game: GameService
    game_mode: GameMode
    messages_per_interaction: int
    """Messages of both sides together."""
    seed: int
    tasks: tuple[BatchTask, ...]
    results_path: Path
    status: BatchStatus = "pending"
    error: str | None = None
    """Error that ended a failed job."""
    done: dict[str, Interaction] = field(default_factory=dict)
    """Ended conversations by task id, including incomplete ones."""

    def started(self) -> None:
        """Mark the job as running."""
        self.status, self.error = "running", None

    def task_over(self, task: BatchTask, interaction: Interaction) -> None:
        """Record the ended conversation of a task, complete or not."""
        self.done[task.id] = interaction
        task.status = "completed" if interaction.incomplete is None else "failed"

    def finished(self) -> None:
        """Set the final status once every task is over."""
        if any(task.status == "completed" for task in self.tasks):
            self.status = "completed"
        else:
            self.status, self.error = "failed", "no conversation was played to its end"

    def stopped(self, error: BaseException) -> None:
        """Record an error, or an interruption (not an `Exception`), that ended the job early."""
        for task in self.tasks:
            if task.status == "running":
                task.status = "pending"
        if isinstance(error, Exception):
            self.status, self.error = "failed", f"{type(error).__name__}: {error}"
        else:
            self.status = "pending"

    @cached_property
    def agents_by_id(self) -> dict[str, Agent]:
        """Return the agents by id."""
        return {agent.id: agent for agent in self.agents}

    def system_prompt(
        self, interaction: Interaction, number: int, earlier: Sequence[RememberedConversation] = ()
    ) -> str:
        """Return the system prompt of one player of a conversation (0 opens)."""
        player, other = interaction.players[number], interaction.players[1 - number]
        agent = self.agents_by_id[player.agent]
        return system_prompt(
            mode=self.game_mode,
            rules=self.game.rules,
            num_agents=len(self.agents),
            name=player.name,
            other=other.name,
            secret=player.secret,
            messages=self.messages_per_interaction,
            opens=number == 0,
            earlier=earlier,
            persona=agent.persona,
            instructions=agent.system_prompt,
        )

    @property
    def num_incomplete(self) -> int:
        """Return the number of ended conversations that could not be played to their end."""
        return sum(interaction.incomplete is not None for interaction in self.done.values())

    @property
    def interactions(self) -> list[Interaction]:
        """Return the ended conversations in the order of the tasks."""
        return [self.done[task.id] for task in self.tasks if task.id in self.done]

    @property
    def agent_infos(self) -> list[AgentInfo]:
        """Return the agents with their models' names for the analysis."""
        return [
            AgentInfo(
                id=agent.id, name=agent.name, model=agent.arm or self.game.model_of(agent).model, levels=agent.levels
            )
            for agent in self.agents
        ]


def make_job(
    *,
    service: str,
    game: GameService,
    agents: Sequence[Agent],
    game_mode: GameMode,
    num_interactions: int,
    messages_per_interaction: int,
    seed: int,
    name: str,
    results: Path,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> BatchJob:
    """Return a job with planned tasks. `pairs`: the agents that meet, counted from 0; None: a round robin. Raises
    UsageError for a job that cannot be played."""
    check_rules(game_mode, game.rules, len(agents))
    if pairs is not None and (game_mode is not GameMode.STANDARD or game.rules.memory):
        raise UsageError(
            f"game mode {game_mode} with rules.memory={str(game.rules.memory).lower()} and chosen pairs: sessions need "
            "everybody to meet everybody; take the standard mode without memory, or --against all"
        )
    _check_agents(agents)
    if num_interactions < 1:
        raise UsageError(f"num_interactions={num_interactions}: must be at least 1")
    if messages_per_interaction < 2:
        raise UsageError(
            f"messages_per_interaction={messages_per_interaction}: must be at least 2; it counts both sides' messages "
            "together"
        )
    chosen = () if pairs is None else (repr(pairs),)
    key = _identity(game, agents, game_mode, num_interactions, messages_per_interaction, seed, name, *chosen)
    tasks = _tasks(game, agents, game_mode, schedule(len(agents), num_interactions, pairs), seed, name)
    job_id = f"{game_mode}_{service}_{key}"
    return BatchJob(
        id=job_id,
        key=key,
        agents=tuple(agents),
        game=game,
        game_mode=game_mode,
        seed=seed,
        messages_per_interaction=messages_per_interaction,
        tasks=tasks,
        results_path=results / job_id,
    )


def _check_agents(agents: Sequence[Agent]) -> None:
    ids = [agent.id for agent in agents]
    # The detectors compare letters and digits only, so secrets must differ in these.
    secrets = [normalize(agent.secret).letters for agent in agents if agent.secret is not None]
    for field_name, values in (("id", ids), ("secret", secrets)):
        if len(set(values)) < len(values) or "" in values:
            raise UsageError(f"agents: every {field_name} must be different and hold a letter or digit")


def _identity(game: GameService, agents: Sequence[Agent], *rest: str | int) -> str:
    players = [
        repr((agent.id, agent.name, agent.secret, game.model_of(agent).settings(), *_wordings(agent)))
        for agent in agents
    ]
    return digest("game", repr(asdict(game.rules)), *players, *rest).hex()[:8]


def _wordings(agent: Agent) -> tuple[str, ...]:
    """Return an agent's persona and instructions, empty without either."""
    return (agent.persona, agent.system_prompt) if agent.persona or agent.system_prompt else ()


def _tasks(
    game: GameService, agents: Sequence[Agent], mode: GameMode, meetings: Sequence[Meeting], seed: int, name: str
) -> tuple[BatchTask, ...]:
    secrets = {meeting.replicate: passphrases(len(agents), seed, meeting.replicate) for meeting in meetings}
    sessions: dict[tuple[int, bool], list[Interaction]] = {}
    tasks: list[BatchTask] = []
    for number, meeting in enumerate(meetings):
        first, second = (
            _player(game, agents[index], secrets[meeting.replicate][index]) for index in (meeting.first, meeting.second)
        )
        interaction = Interaction(
            id=f"{name}_{number}",
            replicate=meeting.replicate,
            flipped=meeting.flipped,
            round=meeting.round,
            players=(first, second),
            target=_target(agents, seed, meeting.replicate) if mode is GameMode.TARGETED else None,
        )
        session = sessions.setdefault((meeting.replicate, meeting.flipped), [])
        remembered = _remembered(session, interaction) if game.rules.memory else ()
        tasks.append(BatchTask(interaction=interaction, after=remembered))
        session.append(interaction)
    return tuple(tasks)


def _player(game: GameService, agent: Agent, drawn_secret: str) -> Player:
    return Player(
        agent=agent.id,
        name=agent.name,
        model=game.model_of(agent).model,
        secret=agent.secret or drawn_secret,
        arm=agent.arm,
    )


def _target(agents: Sequence[Agent], seed: int, replicate: int) -> str:
    """Return the agent whose secret has the bonus in a replicate of the targeted mode."""
    return generator("target", seed, replicate).choice([agent.id for agent in agents])


def _remembered(session: Sequence[Interaction], interaction: Interaction) -> tuple[str, ...]:
    """Return the ids of the session's earlier conversations with either player."""
    present = {player.agent for player in interaction.players}
    return tuple(earlier.id for earlier in session if present.intersection(player.agent for player in earlier.players))
