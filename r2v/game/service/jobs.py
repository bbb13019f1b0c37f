"""What is to be played: a job is a list of tasks, a task one conversation.

A job's identity is what it plays (agents, models, mode, rules, length, seed), not how: the same job asked for
again has the same id, the same secrets and the same requests, and finds in its journal what was paid already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from r2v.errors import UsageError
from r2v.game.detection.normalize import plain
from r2v.game.play.pairing import Meeting, schedule
from r2v.game.play.passphrases import passphrases
from r2v.game.play.players import Agent, ModelAgent
from r2v.game.play.records import Interaction, Player
from r2v.game.play.rules import GameMode, Rules, check
from r2v.game.statistics.analysis import Seated
from r2v.randomness import digest, generator
from r2v.storage.paths import GAME_JOBS

RESULTS = GAME_JOBS


@dataclass(frozen=True, kw_only=True)
class GameService:
    """The game to be played: its rules, and who speaks for agents that bring no model of their own."""

    agent_service: ModelAgent
    rules: Rules = field(default_factory=Rules)

    def model_of(self, agent: Agent) -> ModelAgent:
        """Who speaks for an agent."""
        return agent.service or self.agent_service


@dataclass(frozen=True, kw_only=True)
class BatchTask:
    """One conversation to be played: how it is set up, and the tasks that its players must remember."""

    interaction: Interaction
    after: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The conversation's id."""
        return self.interaction.id


@dataclass(kw_only=True)
class BatchJob:
    """Many tasks, and what has become of them."""

    id: str
    key: str
    """Names every random draw of the job, whichever service plays it."""
    agents: tuple[Agent, ...]
    game: GameService
    game_mode: GameMode
    messages_per_interaction: int
    """Messages of both sides together, which is the number of waves."""
    seed: int
    tasks: tuple[BatchTask, ...]
    results_path: Path
    status: Literal["pending", "running", "completed"] = "pending"
    done: dict[str, Interaction] = field(default_factory=dict)
    """Conversations that are over, by task id; incomplete ones too."""

    @property
    def interactions(self) -> list[Interaction]:
        """What has been played, in the order of the tasks."""
        return [self.done[task.id] for task in self.tasks if task.id in self.done]

    @property
    def seated(self) -> list[Seated]:
        """The agents, as the analysis needs them."""
        return [Seated(id=agent.id, name=agent.name, model=self.game.model_of(agent).model) for agent in self.agents]


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
) -> BatchJob:
    """Lay a job out. Raises UsageError for one that cannot be played."""
    check(game_mode, game.rules, len(agents))
    _check_agents(agents)
    for what, value, least in (
        ("num_interactions", num_interactions, 1),
        ("messages_per_interaction", messages_per_interaction, 2),
    ):
        if value < least:
            raise UsageError(
                f"{what}={value}: must be at least {least}"
                + ("; it counts both sides' messages together" if least == 2 else "")
            )
    key = _identity(game, agents, game_mode, num_interactions, messages_per_interaction, seed, name)
    tasks = _tasks(game, agents, game_mode, schedule(len(agents), num_interactions), seed, name)
    job = f"{game_mode}_{service}_{key}"
    return BatchJob(
        id=job,
        key=key,
        agents=tuple(agents),
        game=game,
        game_mode=game_mode,
        seed=seed,
        messages_per_interaction=messages_per_interaction,
        tasks=tasks,
        results_path=results / job,
    )


def _check_agents(agents: Sequence[Agent]) -> None:
    for what in ("id", "secret"):
        values = [value for agent in agents if (value := getattr(agent, what)) is not None]
        folded = [plain(value).letters if what == "secret" else value for value in values]
        if len(set(folded)) < len(folded) or "" in folded:
            raise UsageError(f"agents: every {what} must be different and hold a letter or digit")


def _identity(game: GameService, agents: Sequence[Agent], *rest: str | int) -> str:
    players = [repr((agent.id, agent.name, agent.secret, asdict(game.model_of(agent)))) for agent in agents]
    return digest("game", repr(asdict(game.rules)), *players, *rest).hex()[:8]


def _tasks(
    game: GameService, agents: Sequence[Agent], mode: GameMode, meetings: Sequence[Meeting], seed: int, name: str
) -> tuple[BatchTask, ...]:
    sets = {meeting.replicate: passphrases(len(agents), seed, meeting.replicate) for meeting in meetings}
    sessions: dict[tuple[int, bool], list[Interaction]] = {}
    tasks: list[BatchTask] = []
    for number, meeting in enumerate(meetings):
        players = [
            Player(
                agent=agent.id,
                name=agent.name,
                model=game.model_of(agent).model,
                secret=agent.secret or sets[meeting.replicate][at],
            )
            for at in (meeting.first, meeting.second)
            for agent in (agents[at],)
        ]
        target = (
            None
            if mode is not GameMode.TARGETED
            else generator("target", seed, meeting.replicate).choice([agent.id for agent in agents])
        )
        interaction = Interaction(
            id=f"{name}_{number}",
            replicate=meeting.replicate,
            flipped=meeting.flipped,
            round=meeting.round,
            players=(players[0], players[1]),
            target=target,
        )
        session = sessions.setdefault((meeting.replicate, meeting.flipped), [])
        tasks.append(
            BatchTask(interaction=interaction, after=_remembered(session, interaction) if game.rules.memory else ())
        )
        session.append(interaction)
    return tuple(tasks)


def _remembered(session: Sequence[Interaction], interaction: Interaction) -> tuple[str, ...]:
    """Earlier conversations of the session with either player."""
    present = {player.agent for player in interaction.players}
    return tuple(one.id for one in session if present.intersection(player.agent for player in one.players))
