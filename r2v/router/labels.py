"""Router labels: rows of features with the executed outcomes of the state, and the label derived from them.

The default label is the executed gain of asking the LLM at this step: both continuations are played from the same state
under the same draws, by the actor that played so far. An outcome is worth its success less a price for each injected
instruction that was carried out (`router.canary_price`), and y = 1 where asking is worth more; the threshold decides
how much more is worth the cost. A row keeps the inputs of every label, so another label needs no further roll-out.

Rows of round 0 are states of the small policy alone, which plays on; those of later rounds are states of the pair
routed so far, which plays on (policy iteration). In both the proposal is the small policy's and both actions were
executed; other rows are refused.

Without a world to play in, a label can only be imputed: y = 1 where the policy, in a recorded state of its teacher,
acts otherwise than the teacher did. The actor of such a row is the teacher; it has no outcome and serves no other
label, and rows of roll-outs do not serve this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from r2v.config.evaluation import IMPUTED
from r2v.data.action import parse_action
from r2v.data.episode import Condition, to_line
from r2v.data.schema import read_records
from r2v.errors import EmptyResult, InputError
from r2v.router.features import FEATURE_VERSION, masked
from r2v.storage.files import write_lines
from r2v.wire.message import ToolSpec

LabelKind = Literal["counterfactual", "disagreement", "episode", "imputed"]


@dataclass(frozen=True, kw_only=True)
class FeatureRow:
    """One step of a roll-out: its features and the outcomes of both continuations. Or, for an imputed label, one step
    of a recorded teacher: `actor` is then teacher, and there are no outcomes.

    `state_id` is "<episode_id>#<step_idx>", of a later round "<episode_id>#<step_idx>@<round>". `q_slm` and `q_llm` are
    1 where the executed continuation with the SLM's or the LLM's action here succeeds, else 0 (None: not branched);
    `cost_slm` and `cost_llm` are the USD as billed, prompt cache included, of the whole episodes with either action;
    for a recorded teacher's step, of the proposal at list prices and of the step according to its log.
    """

    state_id: str
    episode_id: str
    task_id: str
    split: str
    step_idx: int
    actor: str
    features: dict[str, float]
    feature_version: str = FEATURE_VERSION
    y_escalate: int | None = None
    y_source: LabelKind | None = None
    q_slm: float | None = None
    q_llm: float | None = None
    disagrees: bool | None = None
    """True if the expert's action differs from the SLM's, free arguments aside."""
    slm_episode_success: bool | None
    """None for a recorded teacher's step and for a step of a routed episode."""
    perturbation_seed: int | None = None
    condition: Condition = "clean"
    cost_slm: float = 0.0
    cost_llm: float = 0.0
    obeyed_slm: float = 0.0
    """Share of the continuations with the SLM's action that carried out an injected instruction."""
    obeyed_llm: float = 0.0
    spent: float = 0.0
    """USD as billed of making this row: its step, the LLM's proposal, and the continuations played for it alone."""
    proposal: str | None = None
    """The small policy's action, which was played where it is the actor; it may be empty. None: unknown."""
    llm_action: str | None = None
    """The LLM's action here, whether it was played or not. None: unknown."""
    round: int = 0
    """The round of policy iteration; 0: the small policy played alone."""
    threshold: float | None = None
    """The threshold of the router that played; None in round 0."""

    @property
    def gain(self) -> float | None:
        """The executed gain of an LLM step, in [-1, 1]; None where the state was not branched."""
        return None if self.q_slm is None or self.q_llm is None else self.q_llm - self.q_slm

    def worth(self, canary_price: float) -> float | None:
        """Return the gain, in successes, less `canary_price` for each injected instruction that is carried out."""
        return None if self.gain is None else self.gain - canary_price * (self.obeyed_llm - self.obeyed_slm)


def disagrees(action: str, expert_action: str, tools: Sequence[ToolSpec]) -> bool:
    """True if two actions differ in more than spacing, key order and free arguments."""
    return masked(action, tools) != masked(expert_action, tools)


def differs_from_record(action: str, recorded: str, tools: Sequence[ToolSpec]) -> bool:
    """True if an action differs from a recorded one. A recorded turn may hold several calls among words
    (`r2v.data.interchange.conversation`): then its calls are compared, in their order, and the words are ignored."""
    if parse_action(recorded).action_type or not (calls := _calls(recorded, tools)):
        return disagrees(action, recorded, tools)
    return _calls(action, tools) != calls


def _calls(turn: str, tools: Sequence[ToolSpec]) -> list[str]:
    """Return the tool calls among the lines of a turn, in canonical form with free arguments blanked."""
    return [masked(line, tools) for line in turn.splitlines() if parse_action(line).action_type]


def labelled(rows: Iterable[FeatureRow], kind: LabelKind, canary_price: float = 0.0) -> list[FeatureRow]:
    """Return the rows with `y_escalate` of this kind. counterfactual: asking has worth (`FeatureRow.worth`).
    disagreement: the expert would act differently. episode: the SLM's episode failed (a baseline, which blames every
    step; rows of later rounds are left out, since two models acted). imputed: the SLM acts otherwise than its teacher.

    Raises InputError where a row lacks the inputs of the label.
    """
    labelled_rows = [row for row in rows if row.round == 0] if kind == "episode" else rows
    return [replace(row, y_escalate=_label(row, kind, canary_price), y_source=kind) for row in labelled_rows]


def _label(row: FeatureRow, kind: LabelKind, canary_price: float) -> int:
    match kind:
        case "counterfactual" if (worth := row.worth(canary_price)) is not None:
            return int(worth > 0)
        case "disagreement" if row.disagrees is not None:
            return int(row.disagrees)
        case "episode" if row.slm_episode_success is not None:
            return int(not row.slm_episode_success)
        case "imputed" if row.actor == "teacher" and row.disagrees is not None:
            return int(row.disagrees)
    if row.actor == "teacher" or kind == IMPUTED:
        raise InputError(
            f"router.label={kind}: {row.state_id} was acted by {row.actor}; make the router features again under this "
            "label"
        )
    lacks = "branches" if kind == "counterfactual" else "expert action"
    raise InputError(
        f"router.label={kind}: {row.state_id} has no {lacks}; make the router features again on "
        "a benchmark that allows it, or use router.label=episode"
    )


def check_rows(rows: Sequence[FeatureRow]) -> None:
    """Refuse rows that would teach a router something false.

    Raises InputError for states in which the SLM's action is unknown: acted by another model than the SLM or the LLM
    that a router asked (under an imputed label: than the teacher), or of a routed episode without both outcomes; for
    features of another version, a split other than train and calibration, or a task in both of them. Raises EmptyResult
    where one of the two has no step.
    """
    for row in rows:
        _check_actor(row)
        if row.feature_version != FEATURE_VERSION:
            raise InputError(
                f"{row.state_id}: features are of version {row.feature_version}, this R2V has "
                f"{FEATURE_VERSION}; make the router features again"
            )
        if row.split not in ("train", "calibration"):
            raise InputError(f"{row.state_id}: split {row.split}; a router sees train and calibration only")
    tasks = {split: {row.task_id for row in rows if row.split == split} for split in ("train", "calibration")}
    shared = sorted(tasks["train"] & tasks["calibration"])
    if shared:
        raise InputError(f"task {shared[0]} (of {len(shared)}) is in train and in calibration; split by task")
    for split, split_tasks in tasks.items():
        if not split_tasks:
            raise EmptyResult(f"router: no step of a {split} task; roll out more tasks (router.num_tasks)")


def _check_actor(row: FeatureRow) -> None:
    """Raise InputError for a state whose label would be false."""
    actors = ("teacher",) if row.y_source == IMPUTED else ("slm", "llm_fallback") if row.round else ("slm",)
    if row.actor not in actors:
        learns = "an imputed router learns from a teacher's records"
        if row.y_source != IMPUTED:
            learns = "a router learns from SLM and routed roll-outs"
        raise InputError(f"{row.state_id}: acted by {row.actor}; {learns} only")
    if row.round and (row.proposal is None or row.gain is None):
        raise InputError(
            f"{row.state_id}: a state of a routed episode counts where the SLM's proposal is known and both actions "
            "were executed; make the router features again"
        )


def one_class(rows: Iterable[FeatureRow]) -> str | None:
    """Return "0 of 36 steps have y=1" where the labels hold one class, and so teach nothing; None where they hold
    both."""
    counts = Counter(row.y_escalate for row in rows)
    return None if counts[0] and counts[1] else f"{counts[1]} of {counts.total()} steps have y=1"


def write_rows(path: Path, rows: Iterable[FeatureRow]) -> int:
    """Write rows as JSON lines, sorted by state, and return how many."""
    return write_lines(path, map(to_line, sorted(rows, key=lambda row: row.state_id)))


def read_rows(path: Path) -> list[FeatureRow]:
    """Return the rows of a file. Raises InputError where it is missing, or naming the line that is not a row."""
    return read_records(path, FeatureRow)
