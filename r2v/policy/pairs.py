"""Preference pairs from candidates: at most one per state; states without a pair are counted by reason.

    pairs, counts = make_pairs(states, config.preference)

`counts` has `pairs` and one entry per reason; they sum to the number of states. A pair compares two actions
at one state, so a hard task is no reason to prefer anything. Pairs too alike push down the likelihood
of both actions (arXiv 2410.08847) and are dropped. So are lopsided pairs, with a call far longer or shorter than is
typical of its tool, so that no length is preferred; tools may differ in length.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from statistics import median
from typing import Literal

from r2v.config import PreferenceConfig
from r2v.data.action import parse_action
from r2v.data.episode import to_line
from r2v.policy.candidates import CandidateAction, CandidateState
from r2v.storage.files import write_lines
from r2v.wire.message import Message

_MOST_ALIKE = 0.95
"""Largest edit similarity of a pair: DPO on near duplicates pushes both log-probabilities down."""
REASONS = (
    "not_train",
    "all_equal",
    "not_measured",
    "margin",
    "unparseable",
    "canary",
    "similar",
    "length_ratio",
    "duplicate",
    "task_cap",
)
"""Reasons why a state gives no pair, in the order of the checks."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class PreferencePair:
    """A better and a worse action at one state; TRL's columns first."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    state_id: str
    task_id: str
    chosen_score: float | None
    rejected_score: float | None
    chosen_value: float | None
    rejected_value: float | None
    margin: float
    pair_mode: str
    chosen_source: Literal["slm", "teacher"]
    rejected_source: Literal["slm", "teacher"] = "slm"


def make_pairs(states: Iterable[CandidateState], cfg: PreferenceConfig) -> tuple[list[PreferencePair], dict[str, int]]:
    """Return the pairs of `cfg.pair_mode`, by task and step, and the counts of all states by result. A task with too
    many pairs keeps the first ones, and an equal pair counts once."""
    pairs: list[PreferencePair] = []
    counts: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
    seen: set[tuple[str, ...]] = set()
    per_task: Counter[str] = Counter()
    ordered = sorted(states, key=lambda state: (state.task_id, state.step_idx, state.state_id))
    lengths = typical_lengths(ordered)
    for state in ordered:
        pair = _pair(state, cfg, lengths)
        if isinstance(pair, str):
            counts[pair] += 1
            continue
        # a policy in a loop gives the same pair at each of its states
        contents = {(scope, pair.chosen, pair.rejected) for scope in (state.context_sha256, state.task_id)}
        if contents & seen:
            counts["duplicate"] += 1
        elif per_task[state.task_id] >= cfg.max_pairs_per_task:
            counts["task_cap"] += 1
        else:
            seen |= contents
            per_task[state.task_id] += 1
            pairs.append(pair)
    return pairs, {"pairs": len(pairs), **counts}


def why_none(counts: Mapping[str, int], cfg: PreferenceConfig) -> str:
    """Return one line with the reasons why no state gave a pair, and the remedy; from the counts of `make_pairs`."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts.items() if count) or "no states"
    return (
        f"no preference pairs (preference.pair_mode={cfg.pair_mode}): {reasons}; raise candidates.temperature, "
        "candidates.num_tasks or lower the preference margins"
    )


def _pair(state: CandidateState, cfg: PreferenceConfig, lengths: Mapping[str, float]) -> PreferencePair | str:
    """Return the state's pair, or the reason why it has none."""
    if state.split != "train":
        return "not_train"
    better, worse = _contenders(state, cfg)
    if len({action.canonical for action in (*better, *worse)}) < 2:
        return "all_equal"
    margins = [
        (margin, chosen, rejected)
        for chosen in better
        for rejected in worse
        if chosen.canonical != rejected.canonical and (margin := _margin(chosen, rejected, cfg)) is not None
    ]
    if not margins:
        return "not_measured"
    margin, chosen, rejected = max(margins, key=lambda m: (m[0], _likelihood(m[1]), -m[1].k, -m[2].k))
    if margin <= 0 or margin < (cfg.min_value_gap if cfg.pair_mode == "outcome" else cfg.min_margin):
        return "margin"
    reason = _unfit(chosen, rejected, state.canaries, cfg, lengths)
    return reason or PreferencePair(
        prompt=state.prompt,
        chosen=chosen.text,
        rejected=rejected.text,
        state_id=state.state_id,
        task_id=state.task_id,
        chosen_score=chosen.score,
        rejected_score=rejected.score,
        chosen_value=chosen.value,
        rejected_value=rejected.value,
        margin=round(margin, 6),
        pair_mode=cfg.pair_mode,
        chosen_source="teacher" if chosen.k < 0 else "slm",
    )


def _contenders(state: CandidateState, cfg: PreferenceConfig) -> tuple[Sequence[CandidateAction], ...]:
    """Return the actions that may be chosen, and those that may be rejected: the first of each canonical form. The
    teacher's may be chosen where it was played on like the others, and is never rejected."""
    distinct = list({action.canonical: action for action in reversed(state.candidates)}.values())
    shown = [state.teacher] if state.teacher else []
    if cfg.pair_mode == "teacher_vs_slm":
        return shown, distinct
    return [*distinct, *shown] if cfg.pair_mode == "outcome" else distinct, distinct


def _margin(chosen: CandidateAction, rejected: CandidateAction, cfg: PreferenceConfig) -> float | None:
    """Return the margin of the first over the second; None where it was not measured.

    `outcome` compares executed values, the other modes verifier scores, which `consensus` uses only where the executed
    values agree in sign.
    """
    by_value = None if chosen.value is None or rejected.value is None else chosen.value - rejected.value
    by_score = None if chosen.score is None or rejected.score is None else chosen.score - rejected.score
    if cfg.pair_mode == "outcome":
        return by_value
    if cfg.pair_mode == "consensus":
        return None if by_value is None or by_score is None else by_score if by_value > 0 else 0.0
    return by_score


def _likelihood(action: CandidateAction) -> float:
    """Return the log-likelihood under the policy; least for the teacher's action, so that among equals the policy's own
    is chosen."""
    if action.k < 0:
        return -math.inf
    return action.logprob_sum if action.logprob_sum is not None else 0.0


def _unfit(
    chosen: CandidateAction,
    rejected: CandidateAction,
    canaries: Sequence[str],
    cfg: PreferenceConfig,
    lengths: Mapping[str, float],
) -> str | None:
    """Return the reason why the two make no good pair; None if they do."""
    if not parse_action(chosen.text).action_type or chosen.finish_reason != "stop":
        return "unparseable"
    if any(canary in chosen.text for canary in canaries):
        return "canary"
    if similarity(chosen.text, rejected.text) > _MOST_ALIKE:
        return "similar"
    if not 1 / 3 <= _length(chosen, lengths) / max(1e-9, _length(rejected, lengths)) <= 3:
        return "length_ratio"
    return None


def typical_lengths(states: Iterable[CandidateState]) -> dict[str, float]:
    """Return the median characters of a call of each tool, over all candidates and teacher's actions."""
    lengths: dict[str, list[int]] = {}
    for state in states:
        for action in (*state.candidates, *([state.teacher] if state.teacher else [])):
            lengths.setdefault(parse_action(action.text).action_type, []).append(len(action.text))
    return {tool: median(counts) for tool, counts in lengths.items()}


def _length(action: CandidateAction, lengths: Mapping[str, float]) -> float:
    """Return an action's length relative to its tool's typical call, so that two tools do not make a pair lopsided."""
    return len(action.text) / max(1.0, lengths[parse_action(action.text).action_type])


def similarity(a: str, b: str) -> float:
    """Return the share of the two texts' words that match in order, in [0, 1]. Words, not characters: two calls that
    differ in one identifier are different actions."""
    return SequenceMatcher(None, _WORD.findall(a), _WORD.findall(b), autojunk=False).ratio()


def write_pairs(path: Path, pairs: Iterable[PreferencePair]) -> int:
    """Write pairs as JSON lines, in the order given, and return how many."""
    return write_lines(path, map(to_line, pairs))
