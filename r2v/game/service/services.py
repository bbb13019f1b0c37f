"""The seed's services: ways to send a job's conversations to the providers.

    service = OpenAIConversationBatchService(game_service=GameService(agent_service=GPT35Agent()),
                                             max_concurrent_tasks=5, batch_size=10)
    job = service.create_batch_job(agents=agents, game_mode=GameMode.STANDARD, num_interactions=20,
                                   messages_per_interaction=3)
    job = await service.run_batch_job(job.id)           # job.results_path

Every conversation is an async function on the wave engine, so none waits for the slowest. What differs is whose
models a service takes, how its requests travel, and how many conversations are begun:

| service | models | travel | conversations under way |
|---|---|---|---|
| BatchService | any | direct calls | batch_size * max_concurrent_tasks |
| OpenAIBatchService, AnthropicBatchService | its own | batch API | the same |
| ConversationBatchService | any, mixed pairs too | auto | all |
| OpenAIConversationBatchService | OpenAI | batch API | all |
| AnthropicConversationBatchService | Anthropic | direct calls | all |

A wave holds at most `batch_size` requests; at most `max_concurrent_tasks` batches, or direct calls, are out at
the same time for each model; `max_usd` is the cap of the whole job. `mode` chooses another way to travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from r2v.errors import UsageError, nearest
from r2v.game.play.conversation import Chair, Predecessors, converse
from r2v.game.play.player_prompts import Earlier, brief
from r2v.game.play.players import Agent, ModelAgent, Provider
from r2v.game.play.records import Interaction
from r2v.game.play.rules import GameMode, mode_called
from r2v.game.service.jobs import RESULTS, BatchJob, BatchTask, GameService, make_job
from r2v.game.service.provider_setup import Travel, TravelMode, open_provider
from r2v.game.service.store import save, save_setup
from r2v.game.service.wave_log import WaveLog, watched
from r2v.llm.providers.spending.budget import Purse
from r2v.llm.types import Backend, ChatModel, Remote, Reply, Request
from r2v.llm.waves import Waves
from r2v.log import logger
from r2v.storage.lease import lease

OpenModel = Callable[[ModelAgent, Travel], "Backend[Request, Reply] | Remote[Request, Reply]"]
"""Makes the backend of a model."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What tells one service from another."""

    name: str
    provider: Provider | None
    mode: TravelMode
    by_turn: bool
    """Begin all conversations at once, so that a wave can hold the same turn of all of them."""


class BatchService:
    """Plays jobs by direct calls, whoever's the models are."""

    kind: ClassVar[Kind] = Kind(name="default", provider=None, mode="concurrent", by_turn=False)

    def __init__(
        self,
        game_service: GameService,
        max_concurrent_tasks: int = 5,
        batch_size: int = 10,
        *,
        mode: TravelMode | None = None,
        seed: int = 0,
        max_usd: float | None = None,
        poll_seconds: float = 5.0,
        results: Path = RESULTS,
        open_model: OpenModel = open_provider,
        tell: Callable[[str], None] = logger.info,
    ) -> None:
        for name, value in (("max_concurrent_tasks", max_concurrent_tasks), ("batch_size", batch_size)):
            if value < 1:
                raise UsageError(f"{name}={value}: must be at least 1")
        self._game, self._out, self._batch_size = game_service, max_concurrent_tasks, batch_size
        self._mode: TravelMode = mode or self.kind.mode
        self._seed, self._max_usd, self._poll_seconds, self._results = seed, max_usd, poll_seconds, results
        self._open, self._tell = open_model, tell
        self._jobs: dict[str, BatchJob] = {}

    def create_batch_job(
        self,
        agents: Sequence[Agent],
        game_mode: GameMode = GameMode.STANDARD,
        num_interactions: int = 100,
        messages_per_interaction: int = 5,
        name: str = "conversation",
    ) -> BatchJob:
        """Lay out a job: `num_interactions` conversations of `messages_per_interaction` messages, both sides
        together. `name` begins the conversations' ids. Raises UsageError for what cannot be played."""
        job = make_job(
            service=self.kind.name,
            game=self._game,
            agents=agents,
            game_mode=mode_called(game_mode),
            num_interactions=num_interactions,
            messages_per_interaction=messages_per_interaction,
            seed=self._seed,
            name=name,
            results=self._results,
        )
        for agent in agents:
            model = self._game.model_of(agent)
            if self.kind.provider not in (None, model.provider):
                raise UsageError(
                    f"batch service {self.kind.name}: agent {agent.id} is played by {model.model} of "
                    f"{model.provider}; take that provider's service, or conversation for both"
                )
        self._jobs[job.id] = job
        return job

    async def run_batch_job(self, job_id: str) -> BatchJob:
        """Play a job to its end and file its results under `job.results_path`, raw and analysis apart. What its
        journal holds is not asked for again. Raises Held where another process plays it."""
        if job_id not in self._jobs:
            raise UsageError(f"job {job_id}: not created here; {nearest(job_id, self._jobs) if self._jobs else 'none'}")
        job = self._jobs[job_id]
        waves = Waves(workers=1, max_conversations=self._width(job))
        models = self._models(job, waves)
        with lease(job.results_path / "lease"):
            job.status = "running"
            save_setup(job, self.kind.name)
            await self._play(job, waves, models)
            job.status = "completed"
            save(job, self.kind.name)
        incomplete = sum(one.incomplete is not None for one in job.interactions)
        self._tell(
            f"{job.id}: {len(job.tasks) - incomplete} of {len(job.tasks)} conversations played to their end, "
            f"{incomplete} incomplete; results in {job.results_path}"
        )
        return job

    def _width(self, job: BatchJob) -> int:
        return len(job.tasks) if self.kind.by_turn else self._batch_size * self._out

    async def _play(self, job: BatchJob, waves: Waves, models: dict[ModelAgent, ChatModel]) -> None:
        order = Predecessors()
        wait: Callable[[tuple[str, ...]], Coroutine[Any, Any, None]] = waves.port(order)

        async def play(task: BatchTask) -> Interaction:
            if task.after:
                await wait(task.after)
            chairs = (_chair(job, task, 0, models), _chair(job, task, 1, models))
            return await converse(task.interaction, chairs, job.messages_per_interaction, job.game.rules.guess, job.key)

        def over(index: int, interaction: Interaction) -> None:
            job.done[interaction.id] = interaction
            order.ended(interaction.id)
            if interaction.incomplete is not None:
                logger.warning(
                    "%s is incomplete after %d messages: %s",
                    interaction.id,
                    len(interaction.messages),
                    interaction.incomplete,
                )

        await waves.play([partial(play, task) for task in job.tasks if task.id not in job.done], over)

    def _models(self, job: BatchJob, waves: Waves) -> dict[ModelAgent, ChatModel]:
        """A chat model for each one that plays, all on one engine; a model that plays several agents is one."""
        playing = dict.fromkeys(job.game.model_of(agent) for agent in job.agents)
        log = WaveLog(job.messages_per_interaction, self._tell)
        travel = Travel(
            mode=self._mode,
            batch_size=self._batch_size,
            max_concurrent=self._out,
            run=job.key,
            conversations=len(job.tasks),
            poll_seconds=self._poll_seconds,
            purse=Purse(self._max_usd, parties=len(playing), name="--max-usd"),
            folder=job.results_path / "journal",
        )
        max_out = None if self._mode == "concurrent" else self._out
        return {
            model: waves.model(watched(self._open(model, travel), log, self._batch_size, max_out)) for model in playing
        }


def _chair(job: BatchJob, task: BatchTask, at: Literal[0, 1], models: dict[ModelAgent, ChatModel]) -> Chair:
    player, other = task.interaction.players[at], task.interaction.players[1 - at]
    (agent,) = (agent for agent in job.agents if agent.id == player.agent)
    speaker = job.game.model_of(agent)
    told = brief(
        mode=job.game_mode,
        rules=job.game.rules,
        num_agents=len(job.agents),
        name=player.name,
        other=other.name,
        secret=player.secret,
        messages=job.messages_per_interaction,
        opens=at == 0,
        earlier=_earlier(job, task, player.agent),
    )
    return Chair(model=models[speaker], brief=told, temperature=speaker.temperature, max_tokens=speaker.max_tokens)


def _earlier(job: BatchJob, task: BatchTask, agent: str) -> list[Earlier]:
    """What an agent remembers: its own conversations of this session, as far as they went."""
    found = []
    for one in (job.done[waited_for] for waited_for in task.after):
        seats = [player.agent for player in one.players]
        if agent in seats and one.messages:
            at = seats.index(agent)
            found.append(Earlier(other=one.players[1 - at].name, opened=at == 0, messages=one.messages))
    return found


class OpenAIBatchService(BatchService):
    """OpenAI's batch API, a limited number of conversations at a time."""

    kind = Kind(name="openai", provider="openai", mode="batch_first", by_turn=False)


class AnthropicBatchService(BatchService):
    """Anthropic's Message Batches, a limited number of conversations at a time."""

    kind = Kind(name="anthropic", provider="anthropic", mode="batch_first", by_turn=False)


class ConversationBatchService(BatchService):
    """All conversations side by side, whoever's the models are: a pair may have one of each provider."""

    kind = Kind(name="conversation", provider=None, mode="auto", by_turn=True)


class OpenAIConversationBatchService(BatchService):
    """All conversations side by side over OpenAI's batch API."""

    kind = Kind(name="openai-conversation", provider="openai", mode="batch_first", by_turn=True)


class AnthropicConversationBatchService(BatchService):
    """All conversations side by side by direct calls to Anthropic, or its batch API with `mode="batch"`."""

    kind = Kind(name="anthropic-conversation", provider="anthropic", mode="concurrent", by_turn=True)


SERVICES: dict[str, type[BatchService]] = {
    service.kind.name: service
    for service in (
        BatchService,
        OpenAIBatchService,
        AnthropicBatchService,
        ConversationBatchService,
        OpenAIConversationBatchService,
        AnthropicConversationBatchService,
    )
}


def service_called(name: str, models: Sequence[ModelAgent]) -> type[BatchService]:
    """The service of a name; `auto` is the conversation service of the models' provider, or the mixed one."""
    if name == "auto":
        providers = {model.provider for model in models}
        name = f"{providers.pop()}-conversation" if len(providers) == 1 else "conversation"
    if name not in SERVICES:
        raise UsageError(f"--batch-service {name}: no such service; {nearest(name, [*SERVICES, 'auto'])}")
    return SERVICES[name]


def run_here(service: BatchService, job: BatchJob) -> BatchJob:
    """`run_batch_job` for a program without an event loop."""
    return asyncio.run(service.run_batch_job(job.id))
