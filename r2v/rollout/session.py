"""Episode rollout: one episode as an async function, many of them concurrently through the wave engine.

    world = RolloutWorld(benchmark, config.perturbations, config.inference)
    spec = EpisodeSpec(task=task, seed=1, condition="noisy", perturbation_seed=901, method="slm_only")
    episode = await world.start(spec).finish(actor, waves)

A `Session` is an episode in progress. Its world is made when it is opened and closed by the step that ends the episode.
It can be forked at any step (r2v.rollout.fork).
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from r2v.config import InferenceConfig, PerturbationsConfig, TaskSelection
from r2v.data.action import parse_action
from r2v.data.episode import (
    Condition,
    Episode,
    EpisodeMetadata,
    EpisodeOutcome,
    Observation,
    Proposal,
    Step,
    StepLabel,
    Termination,
    episode_id,
)
from r2v.data.split import assign
from r2v.envs.base import Benchmark, Info, Task, more_tasks
from r2v.envs.guard import GuardedEnv
from r2v.errors import EmptyResult
from r2v.llm.providers.remote import Unanswered
from r2v.llm.waves import Waves
from r2v.perturb import PerturbedEnv, perturbation_type, wrap
from r2v.policy.prompt_encoder import build_messages
from r2v.rollout.actors import Act, Actor, StepView
from r2v.rollout.bill import StepBill
from r2v.rollout.sites import SitePool, placed
from r2v.wire.message import Message

REFUSED = "no answer: "
"""Prefix of `env_fault` where a provider gave no answer, for good."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeSpec:
    """An episode to play: a task under a seed, a condition and a perturbation seed, by a named method."""

    task: Task
    seed: int
    condition: Condition = "clean"
    perturbation_seed: int | None = None
    method: str = "teacher"
    split: str | None = None
    run: dict[str, Any] = field(default_factory=dict)
    """run_id, teacher_model, teacher_provider of a collection."""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RolloutWorld:
    """The environment of a rollout: a benchmark, its perturbations, the step limit, the sites that worlds share."""

    benchmark: Benchmark
    perturbations: PerturbationsConfig
    inference: InferenceConfig
    sites: SitePool | None = None

    def start(self, spec: EpisodeSpec) -> Session:
        """Return a session before its first observation; nothing runs yet."""
        return Session(self, self._played(spec))

    def identity_of(self, spec: EpisodeSpec) -> str:
        """Return the id of the episode of a spec."""
        played = self._played(spec)
        return episode_id(played.task.task_id, played.seed, played.perturbation_seed)

    def _played(self, spec: EpisodeSpec) -> EpisodeSpec:
        """Return the spec without `perturbation_seed` where nothing is perturbed."""
        return spec if self.perturbations.active(spec.condition) else replace(spec, perturbation_seed=None)

    def environment(self, spec: EpisodeSpec, site: str | None = None) -> PerturbedEnv:
        """Return a fresh environment, guarded, and perturbed according to the condition."""
        return wrap(
            GuardedEnv(self.benchmark, site),
            self.benchmark,
            self.perturbations,
            spec.condition,
            spec.perturbation_seed or 0,
        )


CatchUp = Callable[[PerturbedEnv], str | None]
"""Brings a fresh world to the point where a fork was taken; the fault that prevents it, or None."""


class Session:
    """One episode in progress. Its world lives from `open` to the step that ends the episode, or to `close`."""

    def __init__(self, world: RolloutWorld, spec: EpisodeSpec, catch_up: CatchUp | None = None) -> None:
        self.world, self.spec = world, spec
        self.goal = spec.task.goal
        # observations and infos begin with the first page: they are one longer than acts and rewards
        self.observations: list[str] = []
        self.infos: list[Info] = []
        self.acts: list[Act] = []
        self.rewards: list[float] = []
        self.termination: Termination | None = None
        self.outcome: EpisodeOutcome = "played"
        self.outcome_reason: str | None = None
        self._env = world.environment(spec)
        self._catch_up = catch_up
        self._tool_names: set[str] = set()
        self._opened = self._closed = False

    def open(self) -> None:
        """Set the world up and take the first observation; a fork's world is brought to the fork's point."""
        self._opened = True
        if self._catch_up is None:
            observation, info = self._env.reset(seed=self.spec.seed, task=self.spec.task)
            self.goal = getattr(self._env, "goal", self.spec.task.goal)
            self._see(observation, info)
        elif self.termination is None and (reason := self._catch_up(self._env)) is not None:
            self.fault(reason)
        if self.termination is not None:
            self.close()
        else:
            self._tool_names = {tool.name for tool in self._env.tool_specs()}  # a branch may end before its first view

    def apply(self, act: Act) -> None:
        """Execute an action, and record its observation and reward; close the world where the episode ends."""
        observation, reward, terminated, truncated, info = self._env.step(act.text)
        self.acts.append(act)
        self.rewards.append(reward)
        self._see(observation, info)
        if self.termination is None and terminated:
            self.termination = "stop"
        elif self.termination is None and (truncated or len(self.acts) >= self.world.inference.max_steps):
            self.termination = "max_steps"
        if self.termination is not None:
            self.close()

    def _see(self, observation: str, info: Info) -> None:
        self.observations.append(observation)
        self.infos.append(info)
        if info.env_fault is not None:
            self.termination = "env_error"

    def snapshot(self) -> Any:
        """Return the world's state, which a fork's world can restore. Raises WorldFault where the world breaks."""
        return self._env.snapshot()

    def fault(self, reason: str) -> None:
        """End the episode because its world broke."""
        self.infos[-1] = replace(self.infos[-1], env_fault=reason)
        self.termination = "env_error"

    def close(self) -> None:
        """Close the world, as the step that ends the episode does. The record stays."""
        self._env.close()
        self._closed = True

    @asynccontextmanager
    async def live(self, waves: Waves) -> AsyncIterator[None]:
        """Open the session's world, unless it is open, and close it however the block ends. A request that a model
        refuses, or that is too long for it, ends the episode as its failure; a reply that is lost for good ends it as a
        fault of the world. Neither is raised, so that the caller can record the episode."""
        async with placed(self.world.sites, self.spec.task, waves) as site:
            if site is not None and not self._opened:
                # the environment of __init__ knew no site, and nothing has run in it
                self._env = self.world.environment(self.spec, site)
            try:
                if not self._opened:
                    await waves.world(self.open)
                yield
            except Unanswered as error:
                if not error.final:  # the reply may yet come: the episode is played again later
                    raise
                if error.outcome is None:  # lost: no failure of the model
                    self.fault(f"{REFUSED}{error}")
                    return
                self.termination, self.outcome, self.outcome_reason = "no_answer", error.outcome, str(error)
            finally:
                if not self._closed:
                    await waves.close(self.close)

    def view(self) -> StepView:
        """Return the actor's view of the current step."""
        actions = tuple(act.text for act in self.acts)
        tools = self._env.tool_specs()
        self._tool_names = {tool.name for tool in tools}
        llm_steps = tuple(step for step, act in enumerate(self.acts) if act.source in ("llm_fallback", "teacher"))
        return StepView(
            task_id=self.spec.task.task_id,
            seed=self.spec.seed,
            step=len(self.acts),
            max_steps=self.world.inference.max_steps,
            goal=self.goal,
            observations=tuple(self.observations),
            actions=actions,
            messages=self._messages(actions),
            tools=tools,
            llm_calls=sum(act.source == "llm_fallback" for act in self.acts),
            llm_steps=llm_steps,
            seconds=tuple(info.sim_seconds for info in self.infos[1:]),
        )

    def _messages(self, actions: tuple[str, ...]) -> tuple[Message, ...]:
        """Return the conversation; a turn with native tool calls is in the model's own form."""
        plain = build_messages(self.goal, self.observations, actions)
        acts = iter(self.acts)
        return tuple((next(acts).said or message) if message.role == "assistant" else message for message in plain)

    @property
    def identity(self) -> str:
        """The episode's id."""
        return episode_id(self.spec.task.task_id, self.spec.seed, self.spec.perturbation_seed)

    @property
    def success(self) -> bool:
        """True if the world reported success at the latest step."""
        return bool(self.infos and self.infos[-1].success)

    async def finish(
        self, actor: Actor, waves: Waves, before_action: Callable[[Session, Act], Awaitable[None]] | None = None
    ) -> Episode:
        """Play to the end; return the episode. `before_action(session, act)` is awaited before each action is
        executed."""
        async with self.live(waves):
            waiting: list[Act] = []
            while self.termination is None:
                # later calls of a reply are executed before the actor is asked again
                act = waiting.pop(0) if waiting else await actor.act(self.view())
                waiting += act.rest
                if before_action is not None:
                    await before_action(self, act)
                await waves.world(self.apply, act)
        return self.episode()

    def episode(self) -> Episode:
        """Return the record of the episode."""
        spec, last, bill = self.spec, self.infos[-1], sum((act.bill for act in self.acts), StepBill())
        steps = tuple(self._step(index) for index in range(len(self.acts)))
        applied = [p for info in self.infos[: len(self.acts)] for p in info.perturbations]
        return Episode(
            episode_id=self.identity,
            metadata=EpisodeMetadata(
                task_id=spec.task.task_id,
                goal=self.goal,
                benchmark=self.world.benchmark.name,
                template_id=spec.task.template_id,
                split=spec.split,
                seed=spec.seed,
                **spec.run,
            ),
            steps=steps,
            success=self.success,
            partial_score=last.partial_score,
            termination=self.termination or "max_steps",
            # rounded: the order of a sum must not change the record
            total_cost=round(bill.cost, 10),
            cached_cost=round(bill.cached_cost, 10),
            tokens=bill.tokens,
            num_llm_fallbacks=sum(act.source == "llm_fallback" for act in self.acts),
            sim_time_seconds=round(bill.seconds + sum(info.sim_seconds for info in self.infos), 6),
            condition=spec.condition,
            perturbation_type=perturbation_type(applied),
            perturbation_seed=spec.perturbation_seed,
            method=spec.method,
            env_fault=last.env_fault,
            outcome=self._outcome(steps),
            outcome_reason=self.outcome_reason,
            extra=dict(spec.extra),
        )

    def _outcome(self, steps: Sequence[Step]) -> EpisodeOutcome:
        """Return the outcome: `unparsed` if the episode failed and most replies were not calls of its tools."""
        prose = sum(step.action.action_type not in self._tool_names for step in steps)
        failed = self.outcome == "played" and not self.success and self.infos[-1].env_fault is None
        return "unparsed" if failed and self._tool_names and 2 * prose > len(steps) else self.outcome

    def _step(self, index: int) -> Step:
        act, info, after = self.acts[index], self.infos[index], self.infos[index + 1]
        shown = self.observations[index]
        clean = shown if info.clean_observation is None else info.clean_observation
        return Step(
            step_idx=index,
            observation=Observation(raw_text=shown),
            action=parse_action(act.text),
            action_source=act.source,
            reward=self.rewards[index],
            clean_observation_sha256=hashlib.sha256(clean.encode()).hexdigest(),
            label=StepLabel(safety_violation=True) if after.harmful else None,
            perturbations=info.perturbations,
            perturbation_seed=self.spec.perturbation_seed,
            decision=act.decision,
            proposal=_proposal(act),
            tokens=act.bill.tokens,
            said=act.said,
            reply_id=act.reply_id,
        )


def _proposal(act: Act) -> Proposal | None:
    """Return the small policy's reply for the record; None where it was not asked."""
    by_router = act.decision is not None and act.decision.escalated
    if act.proposal is None or not (act.source == "slm" or by_router):
        return None
    usage = act.proposal.usage
    return Proposal(text=act.proposal.text, tokens_in=usage.tokens_in, tokens_out=usage.tokens_out)


def episode_specs(
    benchmark: Benchmark,
    split: str,
    seeds: Sequence[int],
    selection: TaskSelection,
    *,
    method: str,
    limit: int | None = None,
) -> list[EpisodeSpec]:
    """Return the episodes of a split's first `limit` tasks: every task once per seed, the i-th seed under the i-th
    perturbation seed (cyclic). Raises EmptyResult where the split has no task."""
    splits = assign(benchmark.tasks(), by=selection.split_by, seed=selection.split_seed)
    tasks = [task for task in benchmark.tasks() if splits[task.task_id] == split][:limit]
    if not tasks:
        if not splits:
            raise EmptyResult(f"{benchmark.name} has no task to play; name a benchmark that has (env.benchmark)")
        raise EmptyResult(
            f"{benchmark.name} has no task in the {split} split: {len(splits)} tasks in all; {more_tasks(benchmark)}"
        )
    return [
        EpisodeSpec(
            task=task,
            seed=seed,
            condition=cast(Condition, selection.condition),
            method=method,
            split=split,
            perturbation_seed=selection.perturbation_seeds[index % len(selection.perturbation_seeds)],
        )
        for index, seed in enumerate(seeds)
        for task in tasks
    ]


def play_many(
    waves: Waves,
    world: RolloutWorld,
    specs: Sequence[EpisodeSpec],
    actor: Actor,
) -> list[Episode]:
    """Play all the specs concurrently; return the episodes in their order."""
    return waves.run(partial(world.start(spec).finish, actor, waves) for spec in specs)
