"""Verifier labels: actions in context with the probability that they lead to success.

Every label says where it comes from:

- outcome: steps of the teacher's successful episodes (1), and where nothing better can be had, steps of
  failed ones, blamed the more the nearer they are to the end;
- td: the lambda-return of each step of an episode (temporal differences with generalised advantage estimation,
  arXiv 1506.02438, 2511.08325), between its outcome and what verifiers of other tasks say of the step after it;
- executed: an action put in place of the teacher's and played on, by whoever the caller lets continue; the
  target is the share of continuations that succeed. Only states that could still be saved count: a verifier
  taught on doomed states learns doom, not the action;
- judge: an LLM's score;
- consensus: an executed action whose target the judge's score comes near to (arXiv 2501.07301): those on which the
  two differ, lucky continuations and mistaken judges among them, are left out.

Tasks weigh the same, whatever their number of steps.
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
from r2v.data.records import read_records
from r2v.errors import InputError
from r2v.storage.files import write_lines
from r2v.wire.message import Message

LabelSource = Literal["outcome", "td", "executed", "judge", "consensus"]
Context = Callable[[str, Sequence[str], Sequence[str]], tuple[Message, ...]]
"""(goal, observations, actions before) -> the conversation an actor would send, as
`policy.build_messages` makes it."""

TEACHER = "teacher"
"""The kind of an action that the teacher took itself."""
BLAME_DECAY = 0.8
CONSENSUS = 0.3
"""Most by which a judge's score may differ from an executed target that it is to confirm."""
SAVABLE = 0.5
"""Least share of continuations of the expert's own action that succeed for a state to count as savable."""


@dataclass(frozen=True, kw_only=True)
class VerifierExample:
    """One labelled action. `state_id` is "<episode_id>#<step_idx>"; `kind` names the corruption, if any."""

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
        """Whether the action counts as a good one: its target is at least 1/2."""
        return self.target >= 0.5

    @property
    def by_teacher(self) -> bool:
        """Whether the teacher took it itself."""
        return self.kind == TEACHER


@dataclass(frozen=True, kw_only=True)
class ExecutedAction:
    """An action that was played, and what its continuations came to: 0 for failure, up to 1 for success, less
    where it took a detour (`detour_value`). `expert_outcomes` are those of the expert's own action at the same
    state."""

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
    """What a continuation is worth: 0 if it failed, else discount ^ (steps more than the expert's own way took).
    Most wrong actions can be mended; without the discount they would all count as right."""
    return float(success) * discount ** max(0, extra_steps)


def blamed(left: int) -> float:
    """The target of a failed episode's step with so many after it: blamed the more the nearer it is to the end."""
    return 1 - BLAME_DECAY**left


def outcome_examples(
    episodes: Iterable[Episode], context: Context, *, failed: Callable[[int], float] | None = None
) -> list[VerifierExample]:
    """One example per step of the successful episodes: target 1. Failed ones join where `failed` says what the target
    of a step with so many after it is. Raises InputError for an episode without a split."""
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
    """Targets of an episode's steps, of their values and of what the episode came to: each is its value plus the
    generalised advantage estimate, undiscounted, the one reward at the end. 1: the outcome everywhere (Monte Carlo);
    0: the value of the step after it (one-step temporal differences)."""
    targets, ahead = [], outcome
    for after in (outcome, *reversed(values[1:])):
        ahead = (1 - gae_lambda) * after + gae_lambda * ahead
        targets.append(ahead)
    return targets[::-1]


def td_examples(
    examples: Sequence[VerifierExample], values: Sequence[float], gae_lambda: float
) -> list[VerifierExample]:
    """The examples of whole episodes, whose targets are outcomes, with lambda-returns in their place. `values`: what is
    said of each by somebody who has not seen its task."""
    found = []
    for _, steps in groupby(zip(examples, values, strict=True), key=lambda pair: pair[0].state_id.rpartition("#")[0]):
        episode = list(steps)
        targets = lambda_returns([value for _, value in episode], episode[-1][0].target, gae_lambda)
        found += [
            replace(example, target=target, label_source="td")
            for (example, _), target in zip(episode, targets, strict=True)
        ]
    return found


def executed_examples(records: Iterable[ExecutedAction]) -> tuple[list[VerifierExample], dict[str, int]]:
    """Examples from played actions at states that could be saved; how many records were kept and dropped."""
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
    """The examples with a judge's scores as targets, in order; those it could not judge are left out."""
    return [
        replace(example, target=score, label_source="judge")
        for example, score in zip(examples, scores, strict=True)
        if score is not None
    ]


def consensus_examples(
    examples: Iterable[VerifierExample], scores: Iterable[float | None]
) -> tuple[list[VerifierExample], dict[str, int]]:
    """The executed examples, with their targets, that a judge's scores confirm; how many were kept, and why others were
    not."""
    kept, counts = [], Counter(kept=0, disputed=0, not_judged=0)
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
            kept.append(replace(example, label_source="consensus"))
    return kept, dict(counts)


def balanced(examples: Sequence[VerifierExample]) -> list[VerifierExample]:
    """The examples with weights that sum to 1 within each task."""
    per_task = Counter(example.task_id for example in examples)
    return [replace(example, weight=1 / per_task[example.task_id]) for example in examples]


def in_order(examples: Iterable[VerifierExample]) -> list[VerifierExample]:
    """The examples by state, kind and action: the order of files and of training."""
    return sorted(examples, key=lambda example: (example.state_id, example.kind, example.action))


def write_examples(path: Path, examples: Iterable[VerifierExample]) -> int:
    """Write examples as JSON lines, in order, and return how many."""
    return write_lines(path, map(to_line, in_order(examples)))


def read_examples(path: Path) -> list[VerifierExample]:
    """The examples of a file. Raises InputError where it is missing or naming the line that is not one."""
    return read_records(path, VerifierExample)
