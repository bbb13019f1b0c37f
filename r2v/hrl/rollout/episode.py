"""Rollout of one episode (an answer, a hint, a better answer), and of many through the wave engine.

    answer 1 -> score -> K hints -> K answers -> K scores -> (the episode continues after the first of them) ...

An episode is an async conversation: all episodes that wait for the actor are served in one batch, then all that wait
for the guidance, then the actor again. Draws are keyed by problem, turn, hint and role, so results do not depend on
batching or the number of ranks. Only the checker sees the reference answer: prompts are built from a problem without
it, and the guidance sees a score only with `guidance.sees_score`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from r2v import distributed
from r2v.config import HierarchicalConfig, RolloutConfig
from r2v.data.schema import from_dict
from r2v.hrl.models.roles import Roles
from r2v.hrl.parallel import ranks
from r2v.hrl.parallel.micro_batch import MicroBatchSizes, RolloutRows
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.hrl.tasks.checkers import Checker, checked_score
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.types import Completion, TokenIds
from r2v.llm.waves import Waves
from r2v.randomness import Key

GenerateFn = Callable[[tuple[GenerationRequest, ...]], Coroutine[Any, Any, tuple[Completion, ...]]]
"""Simultaneous requests of one conversation -> one completion each."""
ScoreFn = Callable[[Problem, Sequence[str]], Coroutine[Any, Any, list[float]]]
"""A problem and its answers -> the score of each, in [0, 1]."""
PromptOf = Callable[[Sequence[str]], TokenIds]
"""Earlier texts -> the prompt that includes them."""
Rounds = list[tuple[str, str | None]]

_PATIENCE = 1.0
"""Seconds that a batch waits for episodes with slow checkers before it is generated without them."""


class Prompts(Protocol):
    """Prompts of both roles, such as `r2v.hrl.tasks.prompts.Prompter`."""

    def answer(self, problem: Problem, rounds: Sequence[tuple[str, str | None]] = ()) -> TokenIds:
        """Return the prompt for an answer after these rounds of answer and hint."""
        ...

    def hint(
        self, problem: Problem, rounds: Sequence[tuple[str, str | None]], answer: str, score: float | None = None
    ) -> TokenIds:
        """Return the prompt for a hint to `answer`."""
        ...


@runtime_checkable
class PlayedChecker(Protocol):
    """Checker that executes answers with the actor, such as `r2v.hrl.rollout.task_rollout.ExecutedActions`."""

    def waves(self, rollout: RolloutConfig) -> Waves:
        """Return the wave engine for the checker's worlds."""
        ...

    def scorer(self, actor: GenerateFn, waves: Waves) -> ScoreFn:
        """Return the function that scores answers, valid while the actor's weights do not change."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredAnswer:
    """An answer and the checker's score in [0, 1]."""

    answer: Completion
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HintedAnswer:
    """A hint and the answer after it."""

    hint: Completion
    after: ScoredAnswer


@dataclass(frozen=True, kw_only=True, slots=True)
class GuidedEpisode:
    """Answers to one problem, first to last (the trunk), and the hints between them.

    `hints[t][0].after` is `turns[t + 1]`; after each other hint came one answer, at which its branch ends. Without
    guidance the groups are empty.
    """

    problem: Problem
    turns: tuple[ScoredAnswer, ...]
    hints: tuple[tuple[HintedAnswer, ...], ...]
    cut_prompts: int = 0
    """Number of prompts in which earlier texts were cut to fit."""


def gather_episodes(share: Sequence[GuidedEpisode]) -> list[GuidedEpisode]:
    """Return all ranks' episodes on every rank, in the order of their problems. All ranks must call."""
    if distributed.ranks() == 1:
        return list(share)
    return [from_dict(GuidedEpisode, plain) for plain in ranks.all_gather([asdict(episode) for episode in share])]


@dataclass(frozen=True, kw_only=True)
class EpisodeContext:
    """Inputs of an episode besides its problem: both policies, prompts, scores, length and sampling."""

    actor: GenerateFn
    guidance: GenerateFn
    prompter: Prompts
    score: ScoreFn
    h: HierarchicalConfig
    temperature: float = 1.0
    hints: int | None = None
    """Hints per answer with guidance; None: as configured."""
    prompt_tokens: int | None = None
    """Limit on a prompt's tokens; None: unlimited."""


async def play(problem: Problem, context: EpisodeContext, key: Key) -> GuidedEpisode:
    """Play one episode. Raises InputError, naming the problem, if its checker raises or returns no score."""
    # The answer and its solution are removed first, so that no prompt can leak them.
    prompts = _LimitedPrompts(context, replace(problem, answer="", solution=""))
    request = partial(_request, context, (*key, problem.id))
    first = await context.actor((request(prompts.answer([]), 0, 0, "actor"),))
    [current] = await _scored(context, problem, first)
    turns, groups, rounds = [current], list[tuple[HintedAnswer, ...]](), Rounds()
    for turn in range(1, context.h.turns):
        hints = await _hints(context, request, prompts, rounds, current, turn)
        tried: list[str | None] = [hint.text for hint in hints] or [None]
        requests = tuple(
            request(prompts.answer([*rounds, (current.answer.text, hint)]), turn, k, "actor")
            for k, hint in enumerate(tried)
        )
        after = await _scored(context, problem, await context.actor(requests))
        groups.append(tuple(HintedAnswer(hint=hint, after=scored) for hint, scored in zip(hints, after, strict=False)))
        rounds.append((current.answer.text, tried[0]))
        current = after[0]
        turns.append(current)
    return GuidedEpisode(problem=problem, turns=tuple(turns), hints=tuple(groups), cut_prompts=prompts.cut)


class _LimitedPrompts:
    """Prompts of one episode, from its problem without the answer, cut to the limit."""

    def __init__(self, context: EpisodeContext, shown: Problem) -> None:
        self._prompter, self._limit, self._shown = context.prompter, context.prompt_tokens, shown
        self.cut = 0
        """Number of prompts cut so far."""

    def answer(self, rounds: Rounds) -> TokenIds:
        return self._limited(rounds, lambda shown_rounds: self._prompter.answer(self._shown, shown_rounds))

    def hint(self, rounds: Rounds, answer: str, score: float | None) -> TokenIds:
        def make(shown_rounds: Rounds) -> TokenIds:
            return self._prompter.hint(self._shown, shown_rounds[:-1], shown_rounds[-1][0], score)

        return self._limited([*rounds, (answer, None)], make)

    def _limited(self, rounds: Rounds, make: Callable[[Rounds], TokenIds]) -> TokenIds:
        flat = [text for texts in rounds for text in texts if text is not None]

        def of(texts: Sequence[str]) -> TokenIds:
            rest = iter(texts)
            return make([(next(rest), None if hint is None else next(rest)) for _, hint in rounds])

        prompt, cut = limited(of, flat, self._limit)
        self.cut += cut
        return prompt


def _request(context: EpisodeContext, key: Key, prompt: TokenIds, turn: int, k: int, role: str) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt,
        key=(*key, turn, k, role),
        max_tokens=context.h.longest_answer if role == "actor" else context.h.longest_hint,
        temperature=context.temperature,
        return_logprobs=context.temperature > 0,
    )


async def _hints(
    context: EpisodeContext,
    request: Callable[..., GenerationRequest],
    prompts: _LimitedPrompts,
    rounds: Rounds,
    current: ScoredAnswer,
    turn: int,
) -> tuple[Completion, ...]:
    guidance = context.h.guidance
    if not guidance.enabled:
        return ()
    prompt = prompts.hint(rounds, current.answer.text, current.score if guidance.sees_score else None)
    count = guidance.hints if context.hints is None else context.hints
    return await context.guidance(tuple(request(prompt, turn, k, "guidance") for k in range(count)))


async def _scored(context: EpisodeContext, problem: Problem, answers: Sequence[Completion]) -> list[ScoredAnswer]:
    scores = await context.score(problem, [answer.text for answer in answers])
    return [ScoredAnswer(answer=answer, score=score) for answer, score in zip(answers, scores, strict=True)]


def checked_by(checker: Checker, waves: Waves) -> ScoreFn:
    """Return a checker's scoring function, run off the event loop."""

    def scores(problem: Problem, answers: Sequence[str]) -> list[float]:
        return [checked_score(checker, problem, answer) for answer in answers]

    return partial(waves.world, scores)


def _waves(rollout: RolloutConfig) -> Waves:
    return Waves(workers=rollout.world_threads(), max_conversations=rollout.max_conversations, max_age=_PATIENCE)


def play_many(
    problems: Sequence[Problem],
    *,
    roles: Roles,
    prompter: Prompts,
    checker: Checker | PlayedChecker,
    h: HierarchicalConfig,
    key: Key,
    temperature: float = 1.0,
    hints: int | None = None,
    versions: Mapping[str, int] | None = None,
    rollout: RolloutConfig | None = None,
    group: int = 1,
    prompt_tokens: int | None = None,
    rows: RolloutRows | None = None,
) -> list[GuidedEpisode]:
    """Play and return this rank's share of the episodes (`ranks.local_share`), `group` consecutive ones for each
    problem.

    `key`: prefix of every draw's key, e.g. (seed, iteration). With temperature 0 decoding is greedy and returns no
    log-probabilities. `versions`: of the policies by role, recorded in their completions. `prompt_tokens`: limit on a
    prompt. `rows`: completions at a time. Raises InputError as `play` does.
    """
    rollout, versions = rollout or RolloutConfig(), versions or {}
    rows = rows or MicroBatchSizes(smallest=rollout.rows).rollout_rows(rollout)
    waves = checker.waves(rollout) if isinstance(checker, PlayedChecker) else _waves(rollout)
    actor, guidance = (
        waves.batched(Generator(roles, role, versions.get(role, 0), rows)) for role in ("actor", "guidance")
    )
    context = EpisodeContext(
        actor=actor,
        guidance=guidance,
        prompter=prompter,
        score=checker.scorer(actor, waves) if isinstance(checker, PlayedChecker) else checked_by(checker, waves),
        h=h,
        temperature=temperature,
        hints=hints,
        prompt_tokens=prompt_tokens,
    )
    episodes = [(problem, (*key, "again", n) if n else key) for problem in problems for n in range(group)]
    return waves.run(partial(play, problem, context, own) for problem, own in ranks.local_share(episodes))


def limited(make: PromptOf, texts: Sequence[str], limit: int | None) -> tuple[TokenIds, bool]:
    """Return `make(texts)` with at most `limit` tokens (None: unlimited), and True if it was cut.

    Earlier texts keep only their ends, with the final answers: the same number of characters each, as many as fit. If
    the rest alone is too long, the prompt's own end is kept.
    """
    whole = make(texts)
    if limit is None or len(whole) <= limit:
        return whole, False
    low, high, best = 0, max(map(len, texts), default=0), make([""] * len(texts))
    while low < high:  # the most characters of each text with which it fits
        length = (low + high + 1) // 2
        shorter = make([text[-length:] for text in texts])
        if len(shorter) <= limit:
            low, best = length, shorter
        else:
            high = length - 1
    return best[-limit:], True
