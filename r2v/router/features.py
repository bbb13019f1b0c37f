"""Router features: signals that exist when the router decides, before the action is executed.

    features = extract(Signals(goal=..., observations=..., actions=..., proposal=reply, tools=tools, ...))
    {"page.obs_changed": 1.0, ..., "uncertainty.entropy_max": 0.31, ...}

A name is `<group>.<signal>`. A missing signal (a backend without log-probs, no samples drawn, no verifier asked) is
absent, never zero; a model that needs it raises InputError. `Signals` holds nothing that a deployed agent does not
know: no kind of perturbation, split, task id, later step or success.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from r2v.data.action import canonical
from r2v.llm.types import Reply, Sample
from r2v.router.case_support import Nearest, support
from r2v.router.page_signals import facts_of, grounding, signature
from r2v.router.spans import REMEMBERED, free_arguments, free_tokens, parsed
from r2v.wire.message import ToolSpec

FEATURE_VERSION = "1"
"""Version, raised whenever a feature changes its meaning; a router refuses features of another one."""


@dataclass(frozen=True, kw_only=True)
class Signals:
    """The inputs of one decision. `observations` has one entry more than `actions`; its last is to be answered."""

    goal: str
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    tools: tuple[ToolSpec, ...]
    proposal: Reply
    """The small policy's reply; its first sample is the action it would play."""
    max_steps: int
    llm_calls: int = 0
    max_llm_calls: int = 1
    samples: tuple[Sample, ...] = ()
    """Further samples for the same context; empty where none were drawn."""
    scores: tuple[float, ...] = ()
    """The verifier's scores: of the proposal, then of `samples`; empty without a verifier."""
    previous_score: float | None = None
    """The verifier's score of the action played one step before."""
    untrusted: str = ""
    """Regular expression of lines that third parties wrote (`Capabilities.untrusted`)."""
    nearest: Nearest = ()
    """The teacher's recorded steps that are nearest to this state; empty without an index of them."""

    @property
    def action(self) -> Sample:
        """The proposed action."""
        return self.proposal.samples[0]


def extract(signals: Signals) -> dict[str, float]:
    """Return every feature that these signals allow, sorted by name, rounded to 6 decimals."""
    features = {
        f"{group}.{name}": round(value, 6) if isinstance(value, float) else float(value)
        for group, describe in _GROUPS.items()
        for name, value in describe(signals).items()
    }
    return dict(sorted(features.items()))


def select(names: Iterable[str], groups: Iterable[str]) -> tuple[str, ...]:
    """Return the names that belong to these groups, sorted."""
    chosen = set(groups)
    return tuple(sorted(name for name in names if name.partition(".")[0] in chosen))


def _uncertainty(signals: Signals) -> dict[str, float]:
    """Return entropies and log-probs (nats) over the proposal's tokens; `nonfree` leaves out free arguments."""
    action = signals.action
    if not action.entropies or not action.logprobs:
        return {}
    free = free_tokens(action, signals.tools)
    nonfree = [entropy for entropy, is_free in zip(action.entropies, free, strict=True) if not is_free]
    return {
        "entropy_mean": statistics.fmean(action.entropies),
        "entropy_max": max(action.entropies),
        "entropy_first": action.entropies[0],
        "entropy_nonfree_max": max(nonfree, default=0.0),
        "entropy_nonfree_mean": statistics.fmean(nonfree or [0.0]),
        "logprob_mean": statistics.fmean(action.logprobs),
        "logprob_min": min(action.logprobs),
        "logprob_sum": sum(action.logprobs),
    }


def _samples(signals: Signals) -> dict[str, float]:
    """Return the agreement of the K samples, with each other and with the proposal, free arguments aside."""
    if not signals.samples:
        return {}
    votes = Counter(masked(sample.text, signals.tools) for sample in signals.samples)
    total = len(signals.samples)
    return {
        "agreement": max(votes.values()) / total,
        "n_unique": len(votes),
        "support": votes[masked(signals.action.text, signals.tools)] / total,
    }


def masked(text: str, tools: Sequence[ToolSpec]) -> str:
    """Return the action in canonical form with its free arguments blanked."""
    return _canonical(text, free_arguments(text, tools))


_canonical = lru_cache(REMEMBERED)(canonical)


def _verifier(signals: Signals) -> dict[str, float]:
    """Return the verifier's score of the proposal, and the distribution of all candidates' scores. `v_prev` is the
    change since the action before (0 at the first)."""
    if not signals.scores:
        return {}
    ranked = sorted(signals.scores, reverse=True)
    proposal = signals.scores[0]
    return {
        "v_proposal": proposal,
        "v_best": ranked[0],
        "v_mean": statistics.fmean(ranked),
        "v_std": statistics.pstdev(ranked),
        "v_spread": ranked[0] - ranked[-1],
        "v_gap12": ranked[0] - ranked[1] if len(ranked) > 1 else 0.0,
        "v_prev": 0.0 if signals.previous_score is None else proposal - signals.previous_score,
    }


def _progress(signals: Signals) -> dict[str, float]:
    return {
        "step_fraction": len(signals.actions) / signals.max_steps,
        "log_context_tokens": math.log1p(signals.proposal.usage.tokens_in),
        "llm_calls_used_fraction": signals.llm_calls / max(1, signals.max_llm_calls),
    }


def _page(signals: Signals) -> dict[str, float]:
    """Return signals of the newest page, of repetitions of the proposal, and of the grounding of its arguments."""
    newest, earlier, tools = signals.observations[-1], signals.observations[:-1], signals.tools
    pages = [facts_of(page, signals.untrusted) for page in signals.observations]
    proposed = masked(signals.action.text, tools)
    repeats = [
        after for before, after in zip(signals.actions, pages[1:], strict=True) if masked(before, tools) == proposed
    ]
    return {
        **grounding(_argument_values(signals), signals.goal, signals.observations, signals.untrusted),
        "num_errors": sum(page.is_error for page in pages),
        "obs_changed": not earlier or earlier[-1] != newest,
        "obs_is_error": pages[-1].is_error,
        "obs_log_lines": math.log1p(pages[-1].lines),
        "obs_seen_before": newest in earlier,
        "obs_truncated": pages[-1].is_truncated,
        "obs_untrusted_lines": pages[-1].untrusted_lines,
        "repeat_action": len(repeats),
        "repeat_after_error": sum(page.is_error for page in repeats),
    }


def _argument_values(signals: Signals) -> list[str]:
    free = free_arguments(signals.action.text, signals.tools)
    arguments = parsed(signals.action.text).arguments
    return [str(value) for name, value in arguments.items() if name not in free]


def _tool(signals: Signals) -> dict[str, float]:
    """Return a one-hot encoding of the proposed tool over the benchmark's tools, `unknown` and `unparseable`."""
    tool_names = [spec.name for spec in signals.tools]
    proposed = parsed(signals.action.text).action_type
    kind = f"is_{proposed}" if proposed in tool_names else "unknown" if proposed else "unparseable"
    return {name: name == kind for name in (*(f"is_{tool}" for tool in tool_names), "unknown", "unparseable")}


def _cases(signals: Signals) -> Mapping[str, float]:
    """Return the support of the proposal by the teacher's nearest recorded steps."""
    if not signals.nearest:
        return {}
    proposed = signature(signals.action.text, signals.goal, signals.observations, signals.tools)
    return support(signals.nearest, proposed)


_GROUPS: Mapping[str, Callable[[Signals], Mapping[str, float]]] = {
    "uncertainty": _uncertainty,
    "samples": _samples,
    "verifier": _verifier,
    "progress": _progress,
    "page": _page,
    "tool": _tool,
    "cases": _cases,
}
