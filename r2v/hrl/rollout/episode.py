"""The rollout of one episode (an answer, a hint, a better answer), and of many through the wave engine.

    answer 1 -> score -> K hints -> K answers -> K scores -> (the episode continues after the first of them) ...

An episode is an async conversation: all episodes that wait for the actor are served in one batch, then all that wait
for the guidance, then the actor again. Draws are keyed by problem, turn, hint and role, so neither batching nor the
number of ranks changes what is generated. The reference answer reaches the checker alone: prompts are made of a problem
without it, and the guidance sees a score only with `guidance.sees_score`.
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
"""Awaited with the requests of one conversation at one moment; gives one completion each."""
ScoreFn = Callable[[Problem, Sequence[str]], Coroutine[Any, Any, list[float]]]
"""Awaited with a problem and answers to it; gives the score of each, in [0, 1]."""
PromptOf = Callable[[Sequence[str]], TokenIds]
"""The prompt with these earlier texts in it."""
Rounds = list[tuple[str, str | None]]

_PATIENCE = 1.0
"""Seconds that a batch waits for episodes whose checkers are slow, before it is generated without them."""


class Prompts(Protocol):
    """Makes the prompts of both roles; `r2v.hrl.tasks.prompts.Prompter` does."""

    def answer(self, problem: Problem, rounds: Sequence[tuple[str, str | None]] = ()) -> TokenIds:
        """The prompt for an answer, after these rounds of answer and hint."""
        ...

    def hint(
        self, problem: Problem, rounds: Sequence[tuple[str, str | None]], answer: str, score: float | None = None
    ) -> TokenIds:
        """The prompt for a hint to `answer`."""
        ...


@runtime_checkable
class PlayedChecker(Protocol):
    """Scores answers by what the actor makes of them; `r2v.hrl.rollout.task_rollout.ExecutedActions` does."""

    def waves(self, rollout: RolloutConfig) -> Waves:
        """The wave engine that its worlds need."""
        ...

    def scorer(self, actor: GenerateFn, waves: Waves) -> ScoreFn:
        """The scores of answers, while the actor's weights stay as they are."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredAnswer:
    """An answer and its score by the checker, in [0, 1]."""

    answer: Completion
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HintedAnswer:
    """A hint, and the answer that followed it."""

    hint: Completion
    after: ScoredAnswer


@dataclass(frozen=True, kw_only=True, slots=True)
class GuidedEpisode:
    """One problem's answers, first to last (the trunk), and the hints that were tried between two of them.

    `hints[t][0].after` is `turns[t + 1]`; each other hint was followed by one answer that went no further. Without
    guidance the groups are empty.
    """

    problem: Problem
    turns: tuple[ScoredAnswer, ...]
    hints: tuple[tuple[HintedAnswer, ...], ...]
    cut_prompts: int = 0
    """Prompts in which earlier texts were cut to fit."""


def gather_episodes(share: Sequence[GuidedEpisode]) -> list[GuidedEpisode]:
    """All ranks' episodes on every rank, in the order of their problems; all must call."""
    if distributed.ranks() == 1:
        return list(share)
    return [from_dict(GuidedEpisode, plain) for plain in ranks.all_gather([asdict(episode) for episode in share])]


@dataclass(frozen=True, kw_only=True)
class EpisodeContext:
    """The needs of an episode besides its problem: both policies, prompts, scores, and its length and sampling."""

    actor: GenerateFn
    guidance: GenerateFn
    prompter: Prompts
    score: ScoreFn
    h: HierarchicalConfig
    temperature: float = 1.0
    hints: int | None = None
    """Hints per answer where there is guidance; None: the configuration's."""
    prompt_tokens: int | None = None
    """Longest prompt; None: any."""


async def play(problem: Problem, context: EpisodeContext, key: Key) -> GuidedEpisode:
    """Play one episode. Raises InputError, naming the problem, where its checker raises or gives no score."""
    # The answer and its solution are removed before anything else, so no prompt, however it is made, can leak it.
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
    """The prompts of one episode, of its problem without the answer, cut to the longest that may be."""

    def __init__(self, context: EpisodeContext, shown: Problem) -> None:
        self._prompter, self._limit, self._shown = context.prompter, context.prompt_tokens, shown
        self.cut = 0
        """Prompts that were cut so far."""

    def answer(self, rounds: Rounds) -> TokenIds:
        return self._limited(rounds, lambda known: self._prompter.answer(self._shown, known))

    def hint(self, rounds: Rounds, answer: str, score: float | None) -> TokenIds:
        def make(known: Rounds) -> TokenIds:
            return self._prompter.hint(self._shown, known[:-1], known[-1][0], score)

        return self._limited([*rounds, (answer, None)], make)

    def _limited(self, rounds: Rounds, make: Callable[[Rounds], TokenIds]) -> TokenIds:
        flat = [text for one in rounds for text in one if text is not None]

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
    """A checker's scores, off the event loop."""

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
    """This rank's episodes, `group` of each problem side by side: every `ranks`-th of them from `rank` on, in order;
    `ranks.all_gather` puts all ranks' together. A prompt has `prompt_tokens` at most.

    `key` begins every draw's key, e.g. (seed, iteration). With temperature 0 everything is greedy and comes without
    log-probabilities. `versions` of the policies, by role, are noted in their completions. `rows` are those that fit.
    """
    rollout, versions = rollout or RolloutConfig(), versions or {}
    rows = rows or MicroBatchSizes(smallest=rollout.batch_size).rollout_rows(rollout.batch_size)
    waves = checker.waves(rollout) if isinstance(checker, PlayedChecker) else _waves(rollout)
    actor, guidance = (
        waves.port(Generator(roles, role, versions.get(role, 0), rows)) for role in ("actor", "guidance")
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
    """`make(texts)` with at most `limit` tokens (None: any number), and whether something was cut for it.

    Of every earlier text only its end is kept, where the final answer stands: as much of each as fits, so that one long
    answer costs a part of itself, and never a run. Where the rest alone is too long, the prompt's own end is kept.
    """
    whole = make(texts)
    if limit is None or len(whole) <= limit:
        return whole, False
    low, high, best = 0, max(map(len, texts), default=0), make([""] * len(texts))
    while low < high:  # the most characters of each text with which it fits
        kept = (low + high + 1) // 2
        shorter = make([text[-kept:] for text in texts])
        if len(shorter) <= limit:
            low, best = kept, shorter
        else:
            high = kept - 1
    return best[-limit:], True
