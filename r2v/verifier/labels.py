"""Verifier labels: actions in context with the probability that they lead to success.

Sources of labels:

- outcome: steps of the teacher's successful episodes (1) and, if nothing better is available, steps of failed ones,
  with lower targets nearer to the end;
- td: the lambda-return of each step of an episode (temporal differences with generalised advantage estimation,
  arXiv 1506.02438, 2511.08325), from its outcome and scores of the next step by verifiers of other tasks;
- executed: an action played in place of the teacher's and continued by a policy of the caller; the target is the
  share of successful continuations. States that cannot be saved are omitted: on them a verifier would learn the state,
  not the action;
- judge: an LLM's score;
- consensus: an executed action whose target is near the judge's score (arXiv 2501.07301); disputed ones, such as lucky
  continuations and mistaken judges, are omitted.

All tasks have the same total weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Literal

from r2v.data.episode import Condition, Episode, to_line
from r2v.data.schema import read_records
from r2v.errors import InputError
from r2v.storage.files import write_lines
from r2v.wire.message import Message

LabelSource = Literal["outcome", "td", "executed", "judge", "consensus"]
Context = Callable[[str, Sequence[str], Sequence[str]], tuple[Message, ...]]
"""(goal, observations, earlier actions) -> an actor's conversation, as by `policy.build_messages`."""

TEACHER = "teacher"
"""Kind of the teacher's own actions."""
BLAME_DECAY = 0.8
CONSENSUS = 0.3
"""Largest difference of a judge's score from an executed target that it confirms."""
SAVABLE = 0.5
"""Smallest mean outcome of the expert's own action at a state that counts as savable."""


@dataclass(frozen=True, kw_only=True)
class VerifierExample:
    """Labelled action. `state_id` is "<episode_id>#<step_idx>"; `kind` names the corruption, if any."""

    state_id: str
    task_id: str
    split: str
    messages: tuple[Message, ...]
    action: str
    target: float
    weight: float = 1.0
    label_source: LabelSource
    kind: str = TEACHER
    condition: Condition = "clean"

    @property
    def good(self) -> bool:
        """True if the action counts as good: its target is at least 1/2."""
        return self.target >= 0.5

    @property
    def by_teacher(self) -> bool:
        """True for the teacher's own action."""
        return self.kind == TEACHER


@dataclass(frozen=True, kw_only=True)
class ExecutedAction:
    """Played action with the outcomes of its continuations: 0 for failure, up to 1 for success, less after a detour
    (`detour_value`). `expert_outcomes`: those of the expert's own action at the same state."""

    state_id: str
    task_id: str
    split: str
    messages: tuple[Message, ...]
    action: str
    outcomes: tuple[float, ...]
    expert_outcomes: tuple[float, ...]
    kind: str
    condition: Condition = "clean"


def detour_value(success: bool, extra_steps: int, discount: float) -> float:
    """Return the value of a continuation: 0 if it failed, else discount ^ (steps beyond the expert's own). Without the
    discount most wrong actions, which can be corrected, would count as right."""
    return float(success) * discount ** max(0, extra_steps)


def blamed(left: int) -> float:
    """Return the target of a failed episode's step with `left` steps after it, lower nearer to the end."""
    return 1 - BLAME_DECAY**left


def outcome_examples(
    episodes: Iterable[Episode], context: Context, *, failed: Callable[[int], float] | None = None
) -> list[VerifierExample]:
    """Return one example per step of the successful episodes, with target 1, and of failed ones if `failed` gives a
    target by the number of steps left. Raise InputError for an episode without a split."""
    examples = []
    for episode in episodes:
        if episode.env_fault is not None or not (episode.success or failed):
            continue
        if episode.metadata.split is None:
            raise InputError(f"{episode.episode_id}: has no split; collect it again or name its split")
        seen = [step.observation.raw_text for step in episode.steps]
        done = [step.action.raw_text for step in episode.steps]
        for step, action in enumerate(done):
            left = len(done) - 1 - step
            examples.append(
                VerifierExample(
                    state_id=f"{episode.episode_id}#{step}",
                    task_id=episode.metadata.task_id,
                    split=episode.metadata.split,
                    action=action,
                    label_source="outcome",
                    condition=episode.condition,
                    messages=context(episode.metadata.goal, seen[: step + 1], done[:step]),
                    target=1.0 if episode.success or failed is None else failed(left),
                )
            )
    return examples


def lambda_returns(values: Sequence[float], outcome: float, gae_lambda: float) -> list[float]:
    """Return the targets of an episode's steps from their values and the outcome, the only reward: each is its value
    plus the undiscounted generalised advantage estimate. gae_lambda 1: the outcome for all steps (Monte Carlo); 0: the
    value of the next step (one-step temporal differences)."""
    targets, ahead = [], outcome
    for after in (outcome, *reversed(values[1:])):
        ahead = (1 - gae_lambda) * after + gae_lambda * ahead
        targets.append(ahead)
    return targets[::-1]


def td_examples(
    examples: Sequence[VerifierExample], values: Sequence[float], gae_lambda: float
) -> list[VerifierExample]:
    """Return the examples of whole episodes with lambda-returns in place of their outcome targets. `values`: scores of
    the examples by verifiers not trained on their tasks."""
    relabelled = []
    for _, steps in groupby(zip(examples, values, strict=True), key=lambda pair: pair[0].state_id.rpartition("#")[0]):
        episode = list(steps)
        targets = lambda_returns([value for _, value in episode], episode[-1][0].target, gae_lambda)
        relabelled += [
            replace(example, target=target, label_source="td")
            for (example, _), target in zip(episode, targets, strict=True)
        ]
    return relabelled


def executed_examples(records: Iterable[ExecutedAction]) -> tuple[list[VerifierExample], dict[str, int]]:
    """Return examples of played actions at savable states, and the numbers of records kept and dropped."""
    examples, counts = [], Counter(kept=0, not_savable=0)
    for record in records:
        if fmean(record.expert_outcomes) < SAVABLE:
            counts["not_savable"] += 1
            continue
        counts["kept"] += 1
        examples.append(
            VerifierExample(
                state_id=record.state_id,
                task_id=record.task_id,
                split=record.split,
                messages=record.messages,
                action=record.action,
                target=fmean(record.outcomes),
                label_source="executed",
                kind=record.kind,
                condition=record.condition,
            )
        )
    return examples, dict(counts)


def judged_examples(examples: Iterable[VerifierExample], scores: Iterable[float | None]) -> list[VerifierExample]:
    """Return the examples with a judge's scores as targets, in order, without unscored ones."""
    return [
        replace(example, target=score, label_source="judge")
        for example, score in zip(examples, scores, strict=True)
        if score is not None
    ]


def consensus_examples(
    examples: Iterable[VerifierExample], scores: Iterable[float | None]
) -> tuple[list[VerifierExample], dict[str, int]]:
    """Return the executed examples confirmed by a judge's scores, with their own targets, and the numbers of examples
    by verdict."""
    confirmed, counts = [], Counter(kept=0, disputed=0, not_judged=0)
    for example, score in zip(examples, scores, strict=True):
        verdict = (
            "not_judged"
            if score is None
            else "kept"
            if abs(score - example.target) <= CONSENSUS + 1e-9  # tenths do not add up in binary
            else "disputed"
        )
        counts[verdict] += 1
        if verdict == "kept":
            confirmed.append(replace(example, label_source="consensus"))
    return confirmed, dict(counts)


def balanced(examples: Sequence[VerifierExample]) -> list[VerifierExample]:
    """Return the examples with weights that sum to 1 within each task."""
    per_task = Counter(example.task_id for example in examples)
    return [replace(example, weight=1 / per_task[example.task_id]) for example in examples]


def in_order(examples: Iterable[VerifierExample]) -> list[VerifierExample]:
    """Return the examples sorted by state, kind and action: the order of files and of training."""
    return sorted(examples, key=lambda example: (example.state_id, example.kind, example.action))


def write_examples(path: Path, examples: Iterable[VerifierExample]) -> int:
    """Write examples as JSON Lines, in order, and return their number."""
    return write_lines(path, map(to_line, in_order(examples)))


def read_examples(path: Path) -> list[VerifierExample]:
    """Return the examples of a file. Raise InputError if it is missing, or with the number of a malformed line."""
    return read_records(path, VerifierExample)
