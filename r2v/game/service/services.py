"""Batch services, which send a job's conversations to the providers.

    service = OpenAIConversationBatchService(game_service=GameService(agent_service=GPT35Agent()),
                                             max_concurrent_tasks=5, batch_size=10)
    job = service.create_batch_job(agents=agents, game_mode=GameMode.STANDARD, num_interactions=20,
                                   messages_per_interaction=3)
    job = await service.run_batch_job(job.id)           # job.results_path

Every conversation is an async function on the wave engine, so none waits for the slowest. Services differ in the models
they accept, in the dispatch of requests, and in the number of conversations begun at once:

| service | models | dispatch | conversations under way |
|---|---|---|---|
| BatchService | any | direct calls | batch_size * max_concurrent_tasks |
| OpenAIBatchService, AnthropicBatchService | its own | batch API | the same |
| ConversationBatchService | any, mixed pairs too | auto | all |
| OpenAIConversationBatchService | OpenAI | batch API | all |
| AnthropicConversationBatchService | Anthropic | direct calls | all |

A wave has at most `batch_size` requests, and each model at most `max_concurrent_tasks` batches or direct calls in
flight. `max_usd` caps the job, `mode` replaces the service's dispatch, `project` shares its replies and cap.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from r2v.errors import UsageError, nearest
from r2v.event_loop import run_async
from r2v.game.play.conversation import Participant, Predecessors, play_conversation
from r2v.game.play.player_prompts import RememberedConversation
from r2v.game.play.players import Agent, ModelAgent, ProviderName, lifecycle_note
from r2v.game.play.records import Interaction
from r2v.game.play.rules import GameMode, parse_game_mode
from r2v.game.service.jobs import BatchJob, BatchTask, GameService, make_job
from r2v.game.service.provider_setup import DispatchMode, DispatchSettings, open_provider
from r2v.game.service.store import save, save_setup
from r2v.game.service.wave_log import WaveLog, with_wave_log
from r2v.llm.providers.spending.budget import SharedBudget
from r2v.llm.types import Backend, ChatModel, Remote, Reply, Request
from r2v.llm.waves import Waves
from r2v.log import logger
from r2v.progress import Progress
from r2v.storage.lease import lease
from r2v.storage.paths import GAME_JOBS

ModelOpener = Callable[[ModelAgent, DispatchSettings], "Backend[Request, Reply] | Remote[Request, Reply]"]
"""Factory of a model's backend."""


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    """Properties of a service."""

    name: str
    provider: ProviderName | None
    """The only provider whose models it accepts; None: any."""
    mode: DispatchMode
    by_turn: bool
    """True to begin all conversations at once, so that a wave can contain the same turn of all of them."""


class BatchService:
    """Service that plays jobs by direct calls to any provider."""

    spec: ClassVar[ServiceSpec] = ServiceSpec(name="default", provider=None, mode="concurrent", by_turn=False)

    def __init__(
        self,
        game_service: GameService,
        max_concurrent_tasks: int = 5,
        batch_size: int = 10,
        *,
        mode: DispatchMode | None = None,
        seed: int = 0,
        max_usd: float | None = None,
        poll_seconds: float = 5.0,
        results: Path = GAME_JOBS,
        project: Path = Path(),
        preflight: bool = True,
        open_model: ModelOpener = open_provider,
        on_line: Callable[[str], None] = logger.info,
    ) -> None:
        for name, value in (("max_concurrent_tasks", max_concurrent_tasks), ("batch_size", batch_size)):
            if value < 1:
                raise UsageError(f"{name}={value}: must be at least 1")
        self._game, self._max_concurrent, self._batch_size = game_service, max_concurrent_tasks, batch_size
        self._mode: DispatchMode = mode or self.spec.mode
        self._seed, self._max_usd, self._poll_seconds, self._results = seed, max_usd, poll_seconds, results
        self._project, self._preflight, self._open_model, self._on_line = project, preflight, open_model, on_line
        self._jobs: dict[str, BatchJob] = {}

    def create_batch_job(
        self,
        agents: Sequence[Agent],
        game_mode: GameMode = GameMode.STANDARD,
        num_interactions: int = 100,
        messages_per_interaction: int = 5,
        name: str = "conversation",
        *,
        pairs: Sequence[tuple[int, int]] | None = None,
    ) -> BatchJob:
        """Return a planned job of `num_interactions` conversations of `messages_per_interaction` messages, both sides
        together. `name` begins the conversations' ids; `pairs` are the agents that meet, counted from 0 (None: a round
        robin). Raises UsageError for a job that cannot be played."""
        job = make_job(
            service=self.spec.name,
            game=self._game,
            agents=agents,
            game_mode=parse_game_mode(game_mode),
            num_interactions=num_interactions,
            messages_per_interaction=messages_per_interaction,
            seed=self._seed,
            name=name,
            results=self._results,
            pairs=pairs,
        )
        for agent in agents:
            model = self._game.model_of(agent)
            if self.spec.provider not in (None, model.provider):
                raise UsageError(
                    f"batch service {self.spec.name}: agent {agent.id} is played by {model.model} of "
                    f"{model.provider}; take that provider's service, or conversation for both"
                )
        self._jobs[job.id] = job
        return job

    async def run_batch_job(self, job_id: str) -> BatchJob:
        """Play a job to its end and write its raw results and analysis under `job.results_path`. Replies in its journal
        are not paid for again. Raises LeaseConflict if another process plays it. After an error the job's status is
        failed, after an interruption pending, and the same call continues it."""
        if job_id not in self._jobs:
            raise UsageError(f"job {job_id}: not created here; {nearest(job_id, self._jobs) if self._jobs else 'none'}")
        job = self._jobs[job_id]
        waves = Waves(workers=1, max_conversations=self._max_conversations(job))
        models = self._models(job, waves)
        with lease(job.results_path / "lease"):
            job.started()
            save_setup(job, self.spec.name)
            try:
                await self._play(job, waves, models)
                job.finished()
                save(job, self.spec.name)
            except BaseException as error:
                job.stopped(error)
                # The error may be a full disk; a second OSError must not replace it.
                with suppress(OSError):
                    save_setup(job, self.spec.name)
                raise
        self._on_line(
            f"{job.id}: {len(job.tasks) - job.num_incomplete} of {len(job.tasks)} conversations played to their end, "
            f"{job.num_incomplete} incomplete; results in {job.results_path}"
        )
        return job

    def _max_conversations(self, job: BatchJob) -> int:
        return len(job.tasks) if self.spec.by_turn else self._batch_size * self._max_concurrent

    async def _play(self, job: BatchJob, waves: Waves, models: dict[ModelAgent, ChatModel]) -> None:
        predecessors = Predecessors()
        wait_for: Callable[[tuple[str, ...]], Coroutine[Any, Any, None]] = waves.batched(predecessors)
        open_tasks = [task for task in job.tasks if task.id not in job.done]

        async def play(task: BatchTask) -> Interaction:
            task.status = "running"
            if task.after:
                await wait_for(task.after)
            participants = (_participant(job, task, 0, models), _participant(job, task, 1, models))
            return await play_conversation(
                task.interaction, participants, job.messages_per_interaction, job.game.rules.guess, job.key
            )

        progress = Progress("conversations", len(job.tasks), done=len(job.done))
        num_incomplete = job.num_incomplete

        def on_over(index: int, interaction: Interaction) -> None:
            nonlocal num_incomplete
            num_incomplete += interaction.incomplete is not None
            job.task_over(open_tasks[index], interaction)
            progress.advance(incomplete=num_incomplete)
            predecessors.ended(interaction.id)
            if interaction.incomplete is not None:
                logger.warning(
                    "interaction incomplete: id=%s messages=%d reason=%s",
                    interaction.id,
                    len(interaction.messages),
                    interaction.incomplete,
                )

        with progress:
            await waves.play([partial(play, task) for task in open_tasks], on_over)

    def _models(self, job: BatchJob, waves: Waves) -> dict[ModelAgent, ChatModel]:
        """Return a chat model per distinct model of the agents, all on one engine."""
        model_agents = dict.fromkeys(job.game.model_of(agent) for agent in job.agents)
        for note in dict.fromkeys(lifecycle_note(agent.service or job.game.agent_service) for agent in job.agents):
            if note is not None:
                logger.warning("model lifecycle: note=%s", note)
        log = WaveLog(job.messages_per_interaction, self._on_line)
        dispatch = DispatchSettings(
            mode=self._mode,
            batch_size=self._batch_size,
            max_concurrent=self._max_concurrent,
            run=job.key,
            conversations=len(job.tasks),
            poll_seconds=self._poll_seconds,
            budget=SharedBudget(self._max_usd, num_trackers=len(model_agents), name="--max-usd"),
            folder=job.results_path / "journal",
            project=self._project,
            preflight=self._preflight,
        )
        # The provider's remote limits direct calls individually; a limit on waves would delay some needlessly.
        max_waves_out = None if self._mode == "concurrent" else self._max_concurrent
        return {
            agent: waves.model(with_wave_log(self._open_model(agent, dispatch), log, self._batch_size, max_waves_out))
            for agent in model_agents
        }


def _participant(
    job: BatchJob, task: BatchTask, number: Literal[0, 1], models: dict[ModelAgent, ChatModel]
) -> Participant:
    agent = job.agents_by_id[task.interaction.players[number].agent]
    model_agent = job.game.model_of(agent)
    return Participant(
        model=models[model_agent],
        system_prompt=job.system_prompt(task.interaction, number, _remembered(job, task, agent.id)),
        temperature=model_agent.temperature,
        max_tokens=model_agent.max_tokens,
    )


def _remembered(job: BatchJob, task: BatchTask, agent: str) -> list[RememberedConversation]:
    """Return an agent's own earlier conversations of this session, including incomplete ones."""
    conversations = []
    for interaction in (job.done[task_id] for task_id in task.after):
        players = [player.agent for player in interaction.players]
        if agent in players and interaction.messages:
            number = players.index(agent)
            conversations.append(
                RememberedConversation(
                    other=interaction.players[1 - number].name, opened=number == 0, messages=interaction.messages
                )
            )
    return conversations


class OpenAIBatchService(BatchService):
    """OpenAI's batch API, a limited number of conversations at a time."""

    spec = ServiceSpec(name="openai", provider="openai", mode="batch_first", by_turn=False)


class AnthropicBatchService(BatchService):
    """Anthropic's Message Batches, a limited number of conversations at a time."""

    spec = ServiceSpec(name="anthropic", provider="anthropic", mode="batch_first", by_turn=False)


class ConversationBatchService(BatchService):
    """All conversations in parallel with models of any provider: a pair may have one of each."""

    spec = ServiceSpec(name="conversation", provider=None, mode="auto", by_turn=True)


class OpenAIConversationBatchService(BatchService):
    """All conversations in parallel over OpenAI's batch API."""

    spec = ServiceSpec(name="openai-conversation", provider="openai", mode="batch_first", by_turn=True)


class AnthropicConversationBatchService(BatchService):
    """All conversations in parallel by direct calls to Anthropic, or its batch API with `mode="batch"`."""

    spec = ServiceSpec(name="anthropic-conversation", provider="anthropic", mode="concurrent", by_turn=True)


SERVICES: dict[str, type[BatchService]] = {
    service.spec.name: service
    for service in (
        BatchService,
        OpenAIBatchService,
        AnthropicBatchService,
        ConversationBatchService,
        OpenAIConversationBatchService,
        AnthropicConversationBatchService,
    )
}


def service_named(name: str, models: Sequence[ModelAgent]) -> type[BatchService]:
    """Return the service of a name; `auto` is the conversation service of the models' provider, or the mixed one.
    Raises UsageError for an unknown name."""
    if name == "auto":
        providers = {model.provider for model in models}
        name = f"{providers.pop()}-conversation" if len(providers) == 1 else "conversation"
    if name not in SERVICES:
        raise UsageError(f"--batch-service {name}: no such service; {nearest(name, [*SERVICES, 'auto'])}")
    return SERVICES[name]


def run_job(service: BatchService, job: BatchJob) -> BatchJob:
    """Run `run_batch_job` from a program without an event loop."""
    return run_async(service.run_batch_job(job.id))
