"""Judge labels: scores of recorded steps and of plausible wrong actions in their place.

    examples = steps_to_judge(episodes, build_messages, num_tasks=200, per_episode=4)
    logger.info(price(judge.unanswered(map(asked, examples)), rate))
    opinions = ask_all(judge, examples, waves)
    examples = judged_examples(examples, opinions.scores)

Nothing is executed, so the environment need not fork. Since few of a teacher's own steps are bad, up to `per_episode`
steps of each episode get a wrong action too (`r2v.verifier.corruptions`). Steps that the judge cannot or will not score
are counted and omitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from r2v.data.episode import Episode
from r2v.errors import EnvironmentFault
from r2v.llm.providers.prices import Rate, prices_version
from r2v.llm.providers.remote import Unanswered
from r2v.llm.types import ScoreRequest
from r2v.llm.waves import Waves
from r2v.progress import Progress
from r2v.randomness import generator
from r2v.verifier.corruptions import corrupt
from r2v.verifier.judge import Judge, question
from r2v.verifier.labels import Context, VerifierExample, blamed, outcome_examples
from r2v.wire.exchange import TokenCounts

_BYTES, _REPLY = 3, 8
"""Approximate bytes per token, and tokens per reply of a judge."""


@dataclass(frozen=True, kw_only=True)
class Opinions:
    """Scores of a judge, one or None per example in order, and the number of answers of each kind."""

    scores: tuple[float | None, ...]
    counts: Mapping[str, int]


def steps_to_judge(
    episodes: Iterable[Episode], context: Context, *, num_tasks: int, per_episode: int
) -> list[VerifierExample]:
    """Return the steps of the first `num_tasks` tasks' episodes and at most `per_episode` wrong actions for each
    episode; targets are those of `outcome_examples`, 0 for a wrong action."""
    tasks: set[str] = set()
    examples: list[VerifierExample] = []
    for episode in episodes:
        if len(tasks) < num_tasks:
            tasks.add(episode.metadata.task_id)
        if episode.metadata.task_id in tasks and episode.env_fault is None:
            steps = outcome_examples([episode], context, failed=blamed)
            examples += [*steps, *_wrong(episode, steps)[:per_episode]]
    return examples


def _wrong(episode: Episode, steps: Sequence[VerifierExample]) -> list[VerifierExample]:
    """Return all corruptions of an episode's steps, in a keyed order."""
    seen = [step.observation.raw_text for step in episode.steps]
    done = [step.action.raw_text for step in episode.steps]
    canaries = [planted.canary for step in episode.steps for planted in step.perturbations if planted.canary]
    examples = [
        VerifierExample(
            state_id=step.state_id,
            task_id=step.task_id,
            split=step.split,
            messages=step.messages,
            action=variant.text,
            target=0.0,
            label_source=step.label_source,
            kind=variant.kind,
            condition=step.condition,
        )
        for at, step in enumerate(steps)
        for variant in corrupt(
            done[at],
            observations=seen[: at + 1],
            actions=done[:at],
            later=done[at + 1 :],
            canaries=canaries,
            key=("judge", step.state_id),
        )
    ]
    generator("judge", episode.episode_id).shuffle(examples)
    return examples


def asked(example: VerifierExample) -> ScoreRequest:
    """Return the judge's question about an example."""
    return ScoreRequest(messages=example.messages, action=example.action)


def price(questions: Sequence[ScoreRequest], rate: Rate) -> str:
    """Return a line with the estimated cost of these questions."""
    sizes = [sum(len(message.text.encode()) for message in question(request)) for request in questions]
    tokens = TokenCounts(fresh=sum(sizes) // _BYTES, output=_REPLY * len(questions))
    batch, direct = (rate.usd(tokens, batch=batch, requests=max(1, len(questions))) for batch in (True, False))
    return (
        f"{len(questions):,} questions to {rate.model}, about {tokens.fresh:,} tokens in, {tokens.output:,} out; "
        f"about ${batch:.4f} in batches, ${direct:.4f} by direct calls (prices of {prices_version()})"
    )


def ask_all(judge: Judge, examples: Sequence[VerifierExample], waves: Waves) -> Opinions:
    """Return every example's score. Raise EnvironmentFault if questions remain unanswered; all answers are cached."""
    requests = list(dict.fromkeys(map(asked, examples)))
    with Progress("judge", len(requests)) as bar:
        answers = waves.run((partial(_ask, judge, request) for request in requests), lambda *_: bar.advance())
    by_request = dict(zip(requests, answers, strict=True))
    unanswered = [answer for answer in answers if isinstance(answer, Unanswered) and not answer.final]
    if unanswered:
        raise EnvironmentFault(
            f"judge: no answer to {len(unanswered)} of {len(requests)} questions ({unanswered[0]}); "
            "the rest is kept: run the same command again"
        )
    counts = Counter({"read": 0, "unreadable": 0, "refused": 0})
    counts.update(
        "refused" if isinstance(answer, Unanswered) else "unreadable" if answer is None else "read"
        for answer in answers
    )
    scores = (by_request[asked(example)] for example in examples)
    return Opinions(
        scores=tuple(None if isinstance(score, Unanswered) else score for score in scores), counts=dict(counts)
    )


async def _ask(judge: Judge, request: ScoreRequest) -> float | None | Unanswered:
    try:
        return await judge(request)
    except Unanswered as error:
        return error


def figures(examples: Sequence[VerifierExample], opinions: Opinions) -> dict[str, object]:
    """Return figures of the judge: answers by kind, and mean scores of steps of successful episodes, of failed ones,
    and of wrong actions (None without any)."""
    groups: dict[str, list[float]] = {"success": [], "failure": [], "wrong_action": []}
    for example, score in zip(examples, opinions.scores, strict=True):
        if score is not None:
            kind = "wrong_action" if not example.by_teacher else "success" if example.target == 1 else "failure"
            groups[kind].append(score)
    means = {kind: round(fmean(scores), 6) if scores else None for kind, scores in groups.items()}
    return {
        "examples": len(examples),
        "questions": dict(opinions.counts),
        "mean_score": means,
        "judged": {kind: len(scores) for kind, scores in groups.items()},
    }
