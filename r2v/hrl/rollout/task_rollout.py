"""Task rollout: the actor plays a benchmark's episodes, to collect task states and to score actions in them.

    states = task_states(world, specs, roles=roles, encoder=encoder, ...)      # one for each step of each episode
    checker = ExecutedActions(world=world, states=states, encoder=encoder, max_tokens=24)

An action's score is 1 if the task succeeds after it when the actor continues greedily, without hints and with its
current weights; else 0. The state is restored by playing its actions again, so benchmarks need no snapshots.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from r2v.config import Price, RolloutConfig
from r2v.errors import EnvironmentFault
from r2v.hrl.models.roles import Roles
from r2v.hrl.parallel import ranks
from r2v.hrl.parallel.micro_batch import MicroBatchSizes, RolloutRows
from r2v.hrl.rollout.episode import GenerateFn, ScoreFn
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.task_states import TaskState
from r2v.llm.types import Reply, Request, Sample, Usage
from r2v.llm.waves import Waves
from r2v.policy.prompt_encoder import Encoder
from r2v.rollout.actors import Act, GreedyActor, PricedModel
from r2v.rollout.model_factory import engine
from r2v.rollout.session import EpisodeSpec, RolloutWorld, Session

TRIES = 3
"""Attempts to play an action in a world that breaks."""
_FREE = Price(input=0.0, output=0.0, seconds_per_call=0.0, seconds_per_token=0.0)


@dataclass(frozen=True, kw_only=True)
class GeneratedReplies:
    """Chat model with the greedy replies of a `Generator`."""

    generate: GenerateFn
    encoder: Encoder

    async def reply(self, request: Request) -> Reply:
        """Return the reply to a conversation."""
        generation = GenerationRequest(
            prompt=tuple(self.encoder(request.messages)),
            key=request.key,
            max_tokens=request.max_tokens,
            temperature=0.0,
            return_logprobs=False,
        )
        [completion] = await self.generate((generation,))
        return Reply(samples=(Sample(text=completion.text),), usage=Usage(), model="actor")

    def actor(self, max_tokens: int) -> GreedyActor:
        """Return the model as an actor with a limit on its actions' tokens."""
        return GreedyActor(PricedModel(self, _FREE, "slm", max_tokens), "slm")


@dataclass(frozen=True, kw_only=True)
class ExecutedActions:
    """Checker of actions, which plays them from their states to the end."""

    world: RolloutWorld
    states: dict[str, TaskState]
    """Problem id -> state."""
    encoder: Encoder
    max_tokens: int
    """Limit on the tokens of the continuing actor's actions."""

    @classmethod
    def of(cls, world: RolloutWorld, states: Iterable[TaskState], encoder: Encoder, max_tokens: int) -> ExecutedActions:
        """Return the checker of these states."""
        return cls(world=world, states={state.id: state for state in states}, encoder=encoder, max_tokens=max_tokens)

    def waves(self, rollout: RolloutConfig) -> Waves:
        """Return a wave engine for the benchmark's worlds."""
        return engine(rollout, self.world.benchmark)

    def scorer(self, actor: GenerateFn, waves: Waves) -> ScoreFn:
        """Return the function that scores actions, continued by `actor`. Scores are cached, because greedy actors are
        deterministic. It raises EnvironmentFault if a world breaks `TRIES` times."""
        greedy = GeneratedReplies(generate=actor, encoder=self.encoder).actor(self.max_tokens)
        scores: dict[tuple[str, str], float] = {}

        async def score(problem: Problem, answers: Sequence[str]) -> list[float]:
            for text in dict.fromkeys(answers):
                if (problem.id, text) not in scores:
                    scores[problem.id, text] = await self._value(self.states[problem.id], text, greedy, waves)
            return [scores[problem.id, text] for text in answers]

        return score

    async def _value(self, state: TaskState, action: str, actor: GreedyActor, waves: Waves) -> float:
        fault: str | None = None
        for _ in range(TRIES):
            session = self.world.start(state.spec)
            async with session.live(waves):
                await waves.world(_replay, session, (*state.actions, action))
                await session.finish(actor, waves)
            fault = session.episode().env_fault
            if fault is None:
                return float(session.success)
        raise EnvironmentFault(f"{state.id}: its world broke {TRIES} times ({fault}); the same command continues")


def _replay(session: Session, actions: Sequence[str]) -> None:
    for text in actions:
        if session.termination is None:
            session.apply(Act(text=text, source="slm"))


def task_states(
    world: RolloutWorld,
    specs: Sequence[EpisodeSpec],
    *,
    roles: Roles,
    encoder: Encoder,
    max_tokens: int,
    rollout: RolloutConfig,
    rows: RolloutRows | None = None,
) -> list[TaskState]:
    """Return the states of the actor's greedy episodes, one for each action, in the order of `specs`; none for episodes
    whose world broke. All ranks must call: each plays its share."""
    rows = rows or MicroBatchSizes(smallest=rollout.rows).rollout_rows(rollout)
    with roles.gathered("actor"):
        waves = engine(rollout, world.benchmark)
        generate = waves.batched(Generator(roles, "actor", rows=rows))
        actor = GeneratedReplies(generate=generate, encoder=encoder).actor(max_tokens)
        own: Iterable[partial[Coroutine[Any, Any, list[TaskState]]]] = (
            partial(_states, world.start(spec), actor, waves) for spec in ranks.local_share(specs)
        )
        own_states = waves.run(own)
    plain = ranks.all_gather([[state.plain() for state in states] for states in own_states])
    return [TaskState.of(state, spec) for spec, states in zip(specs, plain, strict=True) for state in states]


async def _states(session: Session, actor: GreedyActor, waves: Waves) -> list[TaskState]:
    states: list[TaskState] = []

    async def keep(current: Session, act: Act) -> None:
        view = current.view()
        states.append(TaskState(spec=current.spec, actions=view.actions, messages=view.messages))

    episode = await session.finish(actor, waves, before_action=keep)
    return states if episode.env_fault is None else []
