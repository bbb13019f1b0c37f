"""Episode schema: observations, actions and outcome of one task played once.

The same record serves a teacher's demonstration, its perturbed variant and an evaluated method's run. Identities
contain no time or place: `episode_id` is "<task_id>/s<seed>[/p<perturbation_seed>]", and `action_hash` covers the
actions alone. An episode's success is the environment's result of the recorded actions; replaying them gives it again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from r2v.data.schema import from_dict, parse_json
from r2v.wire.message import Message, to_json

EPISODE_SCHEMA = "2"
IMPORTED = "imported"
"""Key of `Episode.extra` with the log of an episode that was not executed here."""
COPIED = "copied context"
"""Label source of a step repeated from an earlier log: context, never trained on."""

Condition = Literal["clean", "noisy", "shift", "heldout"]
Construction = Literal["native", "annotate", "insert", "reroll", "replace"]
ActionSource = Literal["teacher", "slm", "llm_fallback", "self_corrected", "scripted"]
"""self_corrected occurs only in earlier files, as does `num_self_corrections`."""
Termination = Literal["stop", "max_steps", "env_error", "budget", "parse_error", "no_answer"]
EpisodeOutcome = Literal["played", "refused", "truncated", "overflowed", "silent", "unparsed"]
"""played: to the end. The others are failures of a model: refused (by it or a filter); truncated (all tokens spent on
thoughts); overflowed (conversation longer than its context); silent (empty replies); unparsed (most replies without an
action)."""
MODEL_FAILURES: tuple[EpisodeOutcome, ...] = ("refused", "truncated", "overflowed", "silent", "unparsed")
PerturbationType = Literal[
    "none", "tool_flakiness", "partial_observability", "prompt_injection", "distractor", "composite"
]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Observation as the actor saw it, after any perturbation."""

    raw_text: str
    url: str | None = None
    dom_snapshot: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Action:
    """Action of the actor. `raw_text` is executed and replayed; the other fields are its parsed form."""

    raw_text: str
    action_type: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    plan_tag: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepLabel:
    """Judgements of a step; None: not judged. is_correct, is_progress and teacher_agreement occur only in earlier and
    imported files."""

    is_correct: bool | None = None
    is_progress: bool | None = None
    verifier_score: float | None = None
    teacher_agreement: bool | None = None
    safety_violation: bool | None = None
    value: float | None = None
    label_source: str | None = None


@dataclass(frozen=True, kw_only=True)
class AppliedPerturbation:
    """One perturbation applied to a step."""

    category: str
    mode: str = "explicit_transient"
    params: dict[str, Any] = field(default_factory=dict)
    canary: str | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One action considered by a policy."""

    text: str
    logprob: float | None = None
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Routing decision of a step. `p_escalate` is the router's score."""

    p_escalate: float | None = None
    threshold: float | None = None
    escalated: bool = False
    reason: Literal["router", "budget", "forced"] = "router"
    candidates: tuple[Candidate, ...] = ()
    chosen_index: int = 0


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The small policy's action at a step, played or not, and its tokens."""

    text: str
    tokens_in: int = 0
    tokens_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Step:
    """One observation and the action taken on it. `reward`: the action's reward; `tokens`: billed for the step, of all
    models (None: in earlier files); `said`: the model's message, if it is more than text; `reply_id`: the provider's id
    of the reply."""

    step_idx: int
    observation: Observation
    action: Action
    action_source: ActionSource = "teacher"
    reward: float = 0.0
    clean_observation_sha256: str | None = None
    label: StepLabel | None = None
    perturbations: tuple[AppliedPerturbation, ...] = ()
    perturbation_seed: int | None = None
    decision: Decision | None = None
    proposal: Proposal | None = None
    tokens: Tokens | None = None
    said: Message | None = None
    reply_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Tokens spent, by side. Of `llm_in`, `llm_cached` were read from the endpoint's prompt cache and `llm_written`
    written to it; likewise of `slm_in`, if the small policy is served at its own price."""

    slm_in: int = 0
    slm_out: int = 0
    slm_cached: int = 0
    slm_written: int = 0
    llm_in: int = 0
    llm_out: int = 0
    llm_cached: int = 0
    llm_written: int = 0
    verifier_in: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(Tokens)})

    def __sub__(self, other: Tokens) -> Tokens:
        return Tokens(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in dataclasses.fields(Tokens)})


@dataclass(frozen=True, kw_only=True)
class EpisodeMetadata:
    """Provenance of an episode. `run_id`, `teacher_model` and `teacher_provider` version the data."""

    task_id: str
    goal: str
    benchmark: str
    template_id: str | None = None
    site: str | None = None
    repo: str | None = None
    difficulty: str | None = None
    split: str | None = None
    seed: int = 0
    run_id: str | None = None
    teacher_model: str | None = None
    teacher_provider: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One task played once. Costs in USD: `total_cost` at list prices, `cached_cost` with the prompt cache of the LLM's
    endpoint (None: not computed). `sim_time_seconds` is modelled from tokens; `wall_time_seconds` is measured, None if
    a separate log has the times."""

    episode_id: str
    metadata: EpisodeMetadata
    steps: tuple[Step, ...]
    success: bool
    partial_score: float = 0.0
    termination: Termination = "stop"
    total_cost: float = 0.0
    cached_cost: float | None = None
    tokens: Tokens = field(default_factory=Tokens)
    num_llm_fallbacks: int = 0
    num_self_corrections: int = 0
    wall_time_seconds: float | None = None
    sim_time_seconds: float = 0.0
    condition: Condition = "clean"
    perturbation_type: PerturbationType = "none"
    perturbation_seed: int | None = None
    construction: Construction = "native"
    parent_episode_id: str | None = None
    method: str = "teacher"
    env_fault: str | None = None
    outcome: EpisodeOutcome = "played"
    outcome_reason: str | None = None
    """The provider's reason for a missing answer."""
    schema_version: str = EPISODE_SCHEMA
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def executed(self) -> bool:
        """True if R2V executed the actions. An imported episode has no meaningful `success`: it may be trained on, and
        enters no table of results."""
        return IMPORTED not in self.extra

    @property
    def claims_success(self) -> bool | None:
        """Success claimed by an imported episode's log; None if not stated."""
        origin = self.extra.get(IMPORTED)
        outcome = origin.get("outcome") if isinstance(origin, dict) else None
        return outcome if isinstance(outcome, bool) else None

    @property
    def demonstrates(self) -> bool:
        """True if the episode may be cloned: executed with success, or imported and not logged as a failure."""
        return self.env_fault is None and (self.success if self.executed else self.claims_success is not False)

    @property
    def billed_cost(self) -> float:
        """Cost in USD as billed: with the prompt cache, if that was computed."""
        return self.total_cost if self.cached_cost is None else self.cached_cost

    @property
    def action_hash(self) -> str:
        """First 16 hex digits of SHA-256 over the JSON list of action texts."""
        actions = [step.action.raw_text for step in self.steps]
        return hashlib.sha256(json.dumps(actions, ensure_ascii=False).encode()).hexdigest()[:16]

    @property
    def dedup_key(self) -> tuple[str, str, str, str, int | None, str]:
        """Key shared by duplicates. Perturbed variants and equal actions on different tasks have different keys."""
        return (
            self.metadata.benchmark,
            self.metadata.task_id,
            self.condition,
            self.perturbation_type,
            self.perturbation_seed,
            self.action_hash,
        )


def episode_id(task_id: str, seed: int, perturbation_seed: int | None = None) -> str:
    """Return an episode's id from task, seed and, if perturbed, the perturbation's seed."""
    return f"{task_id}/s{seed}" + ("" if perturbation_seed is None else f"/p{perturbation_seed}")


def with_hashed_observations(episode: Episode) -> Episode:
    """Return the episode with the first 16 hex digits of SHA-256 in place of each observation, for records that are
    only replayed and counted."""
    steps = tuple(dataclasses.replace(s, observation=_hashed(s), clean_observation_sha256=None) for s in episode.steps)
    return dataclasses.replace(episode, steps=steps)


def _hashed(step: Step) -> Observation:
    shown = json.dumps([to_dict(step.observation), step.clean_observation_sha256], ensure_ascii=False)
    return Observation(raw_text=hashlib.sha256(shown.encode()).hexdigest()[:16])


def to_dict(record: Any) -> Any:
    """Return a record as plain JSON values, keys in schema order, empty fields included, so that every line of a file
    has the same keys."""
    if isinstance(record, Message):
        return to_json(record)
    if dataclasses.is_dataclass(record):
        return {f.name: to_dict(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, (tuple, list)):
        return [to_dict(item) for item in record]
    return record


def to_line(record: Any) -> str:
    """Return a record as one compact JSON line without newline. Raise ValueError for NaN and infinities."""
    return json.dumps(to_dict(record), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def parse_episode(line: str) -> Episode:
    """Return the episode of one line of a trajectories file. One of schema 1 is converted, with new fields empty. Raise
    ValueError for other lines."""
    try:
        episode = from_dict(Episode, parse_json(line))
        if episode.schema_version == "1":
            episode = dataclasses.replace(episode, schema_version=EPISODE_SCHEMA)
        if "\\u" in line:
            to_line(episode).encode()  # a lone surrogate could not be written again
    except ValueError as error:
        raise ValueError(f"not an episode: {error}") from error
    return episode
