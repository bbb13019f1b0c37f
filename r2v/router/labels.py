"""Router labels: rows of features with the executed outcomes of the state, and the label made of them.

The default label is the executed gain of asking the LLM at this step: both continuations are played from the same state
under the same draws, by whoever played so far. An outcome is worth its success less a price for each injected
instruction that was carried out (`router.canary_price`), and y = 1 where asking is worth more; how much more it has to
be for its dollars, the threshold says. A row keeps all that any label needs, so another label is a relabelling, not
another roll-out.

Rows of round 0 are states of the small policy alone, which plays on; those of later rounds are states of the pair
routed so far, which plays on (policy iteration). Whoever acted there, the proposal is the small policy's and both
actions were executed: rows of which that is not so are refused.

Where there is no world to play in, a label can only be imputed: y = 1 where the policy, shown a state that its teacher
was recorded in, acts otherwise than the teacher did. Such a row was acted by the teacher, holds no outcome, and serves
no other label; nor do rows of roll-outs serve this one.
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
from r2v.data.records import read_records
from r2v.errors import EmptyResult, InputError
from r2v.router.features import FEATURE_VERSION, masked
from r2v.storage.files import write_lines
from r2v.wire.message import ToolSpec

LabelKind = Literal["counterfactual", "disagreement", "episode", "imputed"]


@dataclass(frozen=True, kw_only=True)
class FeatureRow:
    """One step of a roll-out: what was known before it, and what both continuations came to. Or, to impute a
    label, one step of a recorded teacher: `actor` is then teacher, and there are no outcomes.

    `state_id` is "<episode_id>#<step_idx>", of a later round "<episode_id>#<step_idx>@<round>". `q_slm` and `q_llm` are
    1 where the executed continuation with the SLM's or the LLM's action here succeeds, else 0 (None: not branched);
    `cost_slm` and `cost_llm` the USD as billed, prompt cache included, of the whole episodes that they make; of a
    recorded teacher's step those of the proposal, at list prices, and of the step, as its log tells.
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
    """Whether the expert's action differs from the SLM's, free arguments aside."""
    slm_episode_success: bool | None
    """None of a recorded teacher's step, and of a step of a routed episode."""
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
        """The gain, in successes, where each injected instruction that is carried out costs `canary_price` of them."""
        return None if self.gain is None else self.gain - canary_price * (self.obeyed_llm - self.obeyed_slm)


def disagrees(action: str, expert_action: str, tools: Sequence[ToolSpec]) -> bool:
    """Whether two actions differ in more than spacing, key order and free arguments."""
    return masked(action, tools) != masked(expert_action, tools)


def differs_from_record(action: str, recorded: str, tools: Sequence[ToolSpec]) -> bool:
    """Whether an action differs from a recorded one. A recorded turn may hold several calls and words beside them
    (`r2v.data.interchange.conversation`): then its calls count, in their order, and the words are free."""
    if parse_action(recorded).action_type or not (calls := _calls(recorded, tools)):
        return disagrees(action, recorded, tools)
    return _calls(action, tools) != calls


def _calls(turn: str, tools: Sequence[ToolSpec]) -> list[str]:
    """The tool calls among the lines of a turn, in canonical form with free arguments blanked."""
    return [masked(line, tools) for line in turn.splitlines() if parse_action(line).action_type]


def labelled(rows: Iterable[FeatureRow], kind: LabelKind, canary_price: float = 0.0) -> list[FeatureRow]:
    """The rows with `y_escalate` of this kind: asking is worth something (`FeatureRow.worth`); the expert would act
    differently; (a baseline: it blames every step) the SLM's episode failed; or, imputed, the SLM acts otherwise than
    its recorded teacher. An episode of a later round is nobody's alone: it has no label of kind episode.

    Raises InputError where a row lacks what the label is made of.
    """
    kept = [row for row in rows if row.round == 0] if kind == "episode" else rows
    return [replace(row, y_escalate=_label(row, kind, canary_price), y_source=kind) for row in kept]


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

    Raises InputError for states in which nobody knows what the SLM would do: acted by another than it or the LLM that
    a router asked (under an imputed label: than the teacher), or of a routed episode without both outcomes; for
    features of another version, a split other than train and calibration, or a task in both of them; EmptyResult where
    one of the two has no step.
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
    """Raises InputError for a state that teaches something false."""
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
    """ "0 of 36 steps have y=1" where these labels hold one class and so teach nothing; None where they hold both."""
    counts = Counter(row.y_escalate for row in rows)
    return None if counts[0] and counts[1] else f"{counts[1]} of {counts.total()} steps have y=1"


def write_rows(path: Path, rows: Iterable[FeatureRow]) -> int:
    """Write rows as JSON lines, sorted by state, and return how many."""
    return write_lines(path, map(to_line, sorted(rows, key=lambda row: row.state_id)))


def read_rows(path: Path) -> list[FeatureRow]:
    """The rows of a file. Raises InputError where it is missing or naming the line that is not one."""
    return read_records(path, FeatureRow)
