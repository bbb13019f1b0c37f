"""An episode: an answer, a hint, a better answer; and many of them side by side through the wave engine.

    answer 1 -> score -> K hints -> K answers -> K scores -> (the conversation goes on with the first of them) ...

An episode is a conversation like any other: all that wait for the actor are answered in one batch, then all that wait
for guidance, then the actor again. Draws are keyed by problem, turn, hint and role, so neither waves nor ranks change
what is said. The answer that the checker knows reaches the checker alone: prompts are made of a problem without it, and
a score is shown to guidance only with `guidance.sees_score`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from r2v import distributed
from r2v.config import HierarchicalConfig, RolloutConfig
from r2v.hrl.models.roles import Roles
from r2v.hrl.rollout.generator import Ask, Segment, Speaker
from r2v.hrl.tasks.checkers import Checker, score_of
from r2v.hrl.tasks.problems import Problem
from r2v.llm.waves import Waves
from r2v.randomness import Key

Voice = Callable[[tuple[Ask, ...]], Coroutine[Any, Any, tuple[Segment, ...]]]
World = Callable[..., Coroutine[Any, Any, Any]]
Rounds = list[tuple[str, str | None]]
T = TypeVar("T")

_PATIENCE = 1.0
"""Seconds that whoever is ready waits for those whose checkers are slow, before a wave leaves without them."""


class Prompts(Protocol):
    """What the roles are shown; `r2v.hrl.tasks.prompts.Prompter` is one."""

    def answer(self, problem: Problem, rounds: Sequence[tuple[str, str | None]] = ()) -> tuple[int, ...]:
        """Ids that ask for an answer, after these rounds of answer and hint."""
        ...

    def hint(
        self, problem: Problem, rounds: Sequence[tuple[str, str | None]], answer: str, score: float | None = None
    ) -> tuple[int, ...]:
        """Ids that ask for a hint to `answer`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """An answer, and what the checker gave for it, in [0, 1]."""

    answer: Segment
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Hinted:
    """A hint, and the answer that followed it."""

    hint: Segment
    after: Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """A problem's answers, first to last, and between two of them the hints that were tried: `hints[t][0].after` is
    `turns[t + 1]`, the others were followed by one answer each and no further. Without guidance the groups are empty.
    """

    problem: Problem
    turns: tuple[Turn, ...]
    hints: tuple[tuple[Hinted, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How episodes are played."""

    turns: int
    hints: int
    """Hints to one answer; 0: none, the actor is only asked again."""
    answer_tokens: int
    hint_tokens: int
    temperature: float
    sees_score: bool

    @classmethod
    def of(cls, h: HierarchicalConfig, temperature: float = 1.0, hints: int | None = None) -> Rules:
        """Those of a configuration; `hints` in place of its own, where there is guidance."""
        count = h.guidance.hints if hints is None else hints
        return cls(
            turns=h.turns,
            hints=count if h.guidance.enabled else 0,
            answer_tokens=h.answer_tokens,
            hint_tokens=h.hint_tokens,
            temperature=temperature,
            sees_score=h.guidance.sees_score,
        )


@dataclass(frozen=True, kw_only=True)
class Cast:
    """Who plays, and by which rules. Voices are awaited with what is asked at once; `world` runs what may take long."""

    actor: Voice
    guidance: Voice
    prompter: Prompts
    checker: Checker
    world: World
    rules: Rules


async def play(problem: Problem, cast: Cast, key: Key) -> Episode:
    """One episode. Raises InputError, naming the problem, where its checker raises or gives no score."""
    rules, shown = cast.rules, replace(problem, answer="")
    ask = partial(_ask, cast, (*key, problem.id))
    [turn] = await _scored(cast, problem, await cast.actor((ask(cast.prompter.answer(shown, []), 0, 0, "actor"),)))
    turns, groups, rounds = [turn], list[tuple[Hinted, ...]](), Rounds()
    for number in range(1, rules.turns):
        hints = await _hints(cast, ask, shown, rounds, turn, number)
        tried: list[str | None] = [hint.text for hint in hints] or [None]
        asks = tuple(
            ask(cast.prompter.answer(shown, [*rounds, (turn.answer.text, said)]), number, k, "actor")
            for k, said in enumerate(tried)
        )
        after = await _scored(cast, problem, await cast.actor(asks))
        groups.append(tuple(Hinted(hint=hint, after=then) for hint, then in zip(hints, after, strict=False)))
        rounds.append((turn.answer.text, tried[0]))
        turn = after[0]
        turns.append(turn)
    return Episode(problem=problem, turns=tuple(turns), hints=tuple(groups))


def _ask(cast: Cast, key: Key, prompt: tuple[int, ...], turn: int, k: int, role: str) -> Ask:
    rules = cast.rules
    most = rules.answer_tokens if role == "actor" else rules.hint_tokens
    return Ask(
        prompt=prompt,
        key=(*key, turn, k, role),
        max_tokens=most,
        temperature=rules.temperature,
        weighed=rules.temperature > 0,
    )


async def _hints(
    cast: Cast, ask: Callable[..., Ask], problem: Problem, rounds: Rounds, turn: Turn, number: int
) -> tuple[Segment, ...]:
    if not cast.rules.hints:
        return ()
    known = turn.score if cast.rules.sees_score else None
    prompt = cast.prompter.hint(problem, rounds, turn.answer.text, known)
    return await cast.guidance(tuple(ask(prompt, number, k, "guidance") for k in range(cast.rules.hints)))


async def _scored(cast: Cast, problem: Problem, answers: Sequence[Segment]) -> list[Turn]:
    scores: list[float] = await cast.world(_scores, cast.checker, problem, [answer.text for answer in answers])
    return [Turn(answer=answer, score=score) for answer, score in zip(answers, scores, strict=True)]


def _scores(checker: Checker, problem: Problem, answers: Sequence[str]) -> list[float]:
    return [score_of(checker, problem, answer) for answer in answers]


def play_many(
    problems: Sequence[Problem],
    *,
    roles: Roles,
    prompter: Prompts,
    checker: Checker,
    h: HierarchicalConfig,
    key: Key,
    temperature: float = 1.0,
    hints: int | None = None,
    versions: Mapping[str, int] | None = None,
    rollout: RolloutConfig | None = None,
) -> list[Episode]:
    """This rank's episodes: of `problems[rank::ranks]`, in that order; `gathered` puts all of them together.

    `key` begins every draw's key, e.g. (seed, iteration). With temperature 0 everything is greedy and comes without
    log-probabilities. `versions` are those of the policies, by role, which segments are marked with.
    """
    rollout, marks = rollout or RolloutConfig(), versions or {}
    waves = Waves(workers=rollout.workers, max_conversations=rollout.max_conversations, max_age=_PATIENCE)
    actor, guidance = (
        waves.port(Speaker(roles, role, marks.get(role, 0), rollout.batch_size)) for role in ("actor", "guidance")
    )
    cast = Cast(
        actor=actor,
        guidance=guidance,
        prompter=prompter,
        checker=checker,
        world=waves.world,
        rules=Rules.of(h, temperature, hints),
    )
    own = problems[distributed.rank() :: distributed.ranks()]
    return waves.run(partial(play, problem, cast, key) for problem in own)


def gathered(own: Sequence[T]) -> list[T]:
    """What every rank has, on every rank, in the order of what was shared out as `[rank::ranks]`. All ranks must
    ask."""
    if distributed.ranks() == 1:
        return list(own)
    import torch.distributed as group

    parts: list[Any] = [None] * distributed.ranks()
    group.all_gather_object(parts, list(own))
    return [parts[at % len(parts)][at // len(parts)] for at in range(sum(map(len, parts)))]
