"""Batch jobs and their tasks: what is to be played, and how far it has come.

A job is a list of tasks, a task one conversation. A job's identity is what it plays (agents, models, mode, rules,
length, seed), not how: the same job asked for again has the same id, the same secrets and the same requests, and finds
in its journal what was paid already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from r2v.errors import UsageError
from r2v.game.detection.leaks import passphrases
from r2v.game.detection.normalize import normalize
from r2v.game.play.pairing import Meeting, schedule
from r2v.game.play.players import Agent, ModelAgent, current_agent
from r2v.game.play.records import Interaction, Player
from r2v.game.play.rules import GameMode, Rules, check_rules
from r2v.game.statistics.analysis import AgentInfo
from r2v.randomness import digest, generator

BatchStatus = Literal["pending", "running", "completed", "failed"]
"""Of a task: failed means that its conversation could not be played to its end (`Interaction.incomplete` says why).
Of a job: failed means that an error ended it, or that not one of its conversations was played to its end; a job in
which some were is completed. What an error or an interruption stopped midway is pending again."""


@dataclass(frozen=True, kw_only=True)
class GameService:
    """The game to be played: its rules, and the model of agents that bring none of their own."""

    agent_service: ModelAgent
    rules: Rules = field(default_factory=Rules)

    def model_of(self, agent: Agent) -> ModelAgent:
        """The model that plays an agent, or the successor of its type's. Raises UsageError where a model that was named
        itself is retired."""
        return current_agent(agent.service or self.agent_service)


@dataclass(kw_only=True)
class BatchTask:
    """One conversation to be played, and its status."""

    interaction: Interaction
    """How the conversation is set up."""
    after: tuple[str, ...] = ()
    """Ids of the tasks that must be over first, because this one's players remember them."""
    status: BatchStatus = "pending"

    @property
    def id(self) -> str:
        """The conversation's id."""
        return self.interaction.id


@dataclass(kw_only=True)
class BatchJob:
    """Many tasks, their results, and the status of the whole."""

    id: str
    key: str
    """Keys every random draw of the job, whichever service plays it."""
    agents: tuple[Agent, ...]
    game: GameService
    game_mode: GameMode
    messages_per_interaction: int
    """Messages of both sides together, which is the number of waves."""
    seed: int
    tasks: tuple[BatchTask, ...]
    results_path: Path
    status: BatchStatus = "pending"
    error: str | None = None
    """What ended a failed job."""
    done: dict[str, Interaction] = field(default_factory=dict)
    """Conversations that are over, by task id; incomplete ones too."""

    def started(self) -> None:
        """The job is being played."""
        self.status, self.error = "running", None

    def task_over(self, task: BatchTask, interaction: Interaction) -> None:
        """A task's conversation is over, complete or not."""
        self.done[task.id] = interaction
        task.status = "completed" if interaction.incomplete is None else "failed"

    def finished(self) -> None:
        """Every task is over."""
        if any(task.status == "completed" for task in self.tasks):
            self.status = "completed"
        else:
            self.status, self.error = "failed", "no conversation was played to its end"

    def stopped(self, error: BaseException) -> None:
        """An error, or an interruption (no subclass of `Exception`), ended the job before its tasks were over."""
        for task in self.tasks:
            if task.status == "running":
                task.status = "pending"
        if isinstance(error, Exception):
            self.status, self.error = "failed", f"{type(error).__name__}: {error}"
        else:
            self.status = "pending"

    @property
    def interactions(self) -> list[Interaction]:
        """The conversations that are over, in the order of the tasks."""
        return [self.done[task.id] for task in self.tasks if task.id in self.done]

    @property
    def agent_infos(self) -> list[AgentInfo]:
        """The agents with their models' names, as the analysis needs them."""
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
    """Plan a job's tasks. `pairs` of agents, counted from 0, meet; None: everybody meets everybody. Raises UsageError
    for a job that cannot be played."""
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
    key = _identity(
        game,
        agents,
        game_mode,
        num_interactions,
        messages_per_interaction,
        seed,
        name,
        *(() if pairs is None else [repr(pairs)]),
    )
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
    # The detectors read letters and digits alone, so two secrets that differ elsewhere only are the same to them.
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
    """What distinguishes an agent beside its model: nothing, for one without."""
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
    """The agent whose secret is worth more in a replicate of the targeted mode."""
    return generator("target", seed, replicate).choice([agent.id for agent in agents])


def _remembered(session: Sequence[Interaction], interaction: Interaction) -> tuple[str, ...]:
    """Ids of the session's earlier conversations with either player."""
    present = {player.agent for player in interaction.players}
    return tuple(earlier.id for earlier in session if present.intersection(player.agent for player in earlier.players))
