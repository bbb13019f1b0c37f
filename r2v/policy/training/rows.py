"""Training rows: a cloned episode's steps as token sequences.

    built = build_rows(episodes, encoder, trees=lambda: True)

An episode that fits is one row with its loss on every action. Where it does not fit (its context is elided as while
acting, `r2v.policy.prompt_encoder`), or the template rewrites history, its steps are rows with common beginnings: laid
into prefix trees (`r2v.policy.prefix_tree`) where the model can read them, else trained on one by one. No action is
ever cut: a step whose goal and action alone are too long is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from r2v.data.episode import COPIED, Episode
from r2v.errors import InputError
from r2v.policy.prefix_tree import IGNORED, lay_out
from r2v.policy.prompt_encoder import Encoder, build_messages


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One training sequence; `labels` is IGNORED except on action tokens. `elided` counts steps.

    `depths` and `ends` are those of a prefix tree; without, it is a plain sequence. `alone`: tokens of its steps as
    single rows.
    """

    ids: list[int]
    labels: list[int]
    steps: int
    elided: int
    alone: int = 0
    depths: list[int] | None = None
    ends: list[int] | None = None


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """All training rows, and the number of steps that were dropped because even the shortest form was too long."""

    rows: list[TrainingRow]
    dropped: int


def _never() -> bool:
    return False


def build_rows(episodes: Iterable[Episode], encoder: Encoder, trees: Callable[[], bool] = _never) -> TrainingRows:
    """Return token rows of these episodes, in their order. `trees`: True if steps may be laid into prefix trees; called
    only where several could be."""
    rows: list[TrainingRow] = []
    dropped = 0
    for episode in episodes:
        steps = [step_row(context, action, encoder) for context, action in steps_of(episode)]
        fitting = [row for row in steps if row is not None]
        dropped += len(steps) - len(fitting)
        whole = _episode_row(fitting) if len(fitting) == len(steps) else None
        if whole is not None:
            rows.append(whole)
        else:
            rows += _trees(fitting, encoder.max_seq_len) if len(fitting) > 1 and trees() else fitting
    return TrainingRows(rows, dropped)


def _trees(steps: Sequence[TrainingRow], most: int) -> Iterator[TrainingRow]:
    """Yield an episode's steps in prefix trees, each of at most `most` tokens, or of one step."""
    at = 0
    for tree in lay_out([(row.ids, row.labels) for row in steps], most):
        held = steps[at : at + tree.rows]
        at += tree.rows
        yield TrainingRow(
            tree.ids,
            tree.labels,
            tree.rows,
            sum(row.elided for row in held),
            sum(len(row.ids) for row in held),
            tree.depths,
            tree.ends,
        )


def steps_of(episode: Episode) -> Iterator[tuple[Any, str]]:
    """Yield (messages before the action, action) of every step that is learnt; steps copied from another log are
    not."""
    observations = [step.observation.raw_text for step in episode.steps]
    actions = [step.action.raw_text for step in episode.steps]
    system = episode.metadata.extra.get("system")
    for t, (step, action) in enumerate(zip(episode.steps, actions, strict=True)):
        if step.label is None or step.label.label_source != COPIED:
            yield build_messages(episode.metadata.goal, observations[: t + 1], actions[:t], system), action


def step_row(context: Any, action: str, encoder: Encoder) -> TrainingRow | None:
    """Return the row of one action after its context; None where it is too long even elided. The template's opening of
    a reply is learned too: R2V's prompts end in it, those of a chat server do not."""
    target = encoder.action_ids(action)
    try:
        prompt = encoder.prompt(context, reserve=max(len(target), encoder.reserve))
    except InputError:
        return None
    ids, begun = [*prompt.ids, *target], len(prompt.ids) - encoder.opening_size(context)
    return TrainingRow(ids, [IGNORED] * begun + ids[begun:], 1, int(prompt.elided))


def _episode_row(steps: Sequence[TrainingRow]) -> TrainingRow | None:
    """Return the episode as one row, if every step's prompt and action is a prefix of it: then one pass teaches
    exactly what a row per step would."""
    ids: list[int] = []
    labels: list[int] = []
    for row in steps:
        if row.elided or row.ids[: len(ids)] != ids:
            return None
        labels += row.labels[len(ids) :]
        ids = row.ids
    return TrainingRow(ids, labels, len(steps), 0)
