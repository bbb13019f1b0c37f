"""Who acted, by the rule: every recorded decision is made again from its score, its threshold and the calls so far.

A score itself is the word of a model that is not in the folder, except of routers that look at nothing: it follows from
the step and the key. But the same state has one score and one greedy action, whichever method's episode it is met in:
`KnownStates` remembers both for the episodes of one task and seed, so that an episode filed under another method
contradicts the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from r2v.config import InferenceConfig
from r2v.config.methods import ROUTERS
from r2v.data.episode import Decision, Episode, Step
from r2v.router.baselines import DRAWN, score_function
from r2v.router.escalation import escalates, needs_score, recorded_score

SLM, LLM = "slm", "llm_fallback"
_BEST = "best_of_k"
_OTHER_POLICIES = ("slm_bc_only", "slm_base", _BEST)
"""Methods whose small policy is another one, or does not act greedily."""
_LOWEST = -1e4
"""Nats: no sample of a policy is less likely."""

Prefix = tuple[str, ...]
"""The actions before a step: with task, seed and condition they are the state."""


def decision_problems(episode: Episode, threshold: float | None, inference: InferenceConfig) -> Iterator[str]:
    """What in an episode's decisions and sources is not what its method does at this threshold."""
    calls = 0
    for step in episode.steps:
        if episode.method in ROUTERS:
            yield from _routed(episode, step, threshold, calls, inference)
        elif episode.method == _BEST and inference.num_candidates > 1:
            yield from _best_of_k(step, inference)
        else:
            yield from _unrouted(episode.method, step)
        calls += step.action_source == LLM


def _routed(
    episode: Episode, step: Step, threshold: float | None, calls: int, inference: InferenceConfig
) -> Iterator[str]:
    where, made = f"step {step.step_idx}", step.decision
    if made is None or threshold is None:
        yield f"{where} has no decision, or calibration.json no threshold"
        return
    expected = _expected(made.p_escalate, threshold, calls, inference.max_llm_calls)
    if expected is None:
        yield f"{where}: p_escalate {made.p_escalate} is no score"
    elif made != expected:
        yield f"{where}: {_words(made)}, by the rule {_words(expected)}"
    if step.action_source != (LLM if made.escalated else SLM):
        yield f"{where}: escalated={str(made.escalated).lower()}, but action_source is {step.action_source}"
    if episode.method in DRAWN and needs_score(threshold):
        score = score_function(episode.method, {})
        drawn = recorded_score(score({}, episode.metadata.seed, episode.metadata.task_id, step.step_idx))
        if made.p_escalate != drawn:
            yield f"{where}: p_escalate is {made.p_escalate}, the keyed draw is {drawn}"


def _expected(score: float | None, threshold: float, calls: int, most: int) -> Decision | None:
    if not needs_score(threshold):
        return Decision(threshold=threshold, escalated=escalates(None, threshold))
    if score is None or not 0 <= score <= 1 or recorded_score(score) != score:
        return None
    if escalates(score, threshold) and calls >= most:
        return Decision(p_escalate=score, threshold=threshold, reason="budget")
    return Decision(p_escalate=score, threshold=threshold, escalated=escalates(score, threshold))


def _words(decision: Decision) -> str:
    return (
        f"p_escalate {decision.p_escalate} threshold {decision.threshold} escalated={str(decision.escalated).lower()} "
        f"reason {decision.reason} candidates {len(decision.candidates)} chosen {decision.chosen_index}"
    )


def _unrouted(method: str, step: Step) -> Iterator[str]:
    sources = {"llm_only": (LLM,), "oracle_router": (SLM, LLM)}.get(method, (SLM,))
    if step.action_source not in sources:
        yield f"step {step.step_idx}: action_source is {step.action_source}, of {method} it is {' or '.join(sources)}"
    asked = method == "oracle_router" and step.action_source == LLM
    if step.decision != (Decision(escalated=True) if asked else None):
        yield f"step {step.step_idx}: has a decision that {method} does not make"


def _best_of_k(step: Step, inference: InferenceConfig) -> Iterator[str]:
    where, made = f"step {step.step_idx}", step.decision
    if step.action_source != SLM or made is None or len(made.candidates) != inference.num_candidates:
        yield f"{where}: not the choice among {inference.num_candidates} candidates of the small policy"
        return
    scores = [candidate.score for candidate in made.candidates]
    if any(score is None or not 0 <= score <= 1 for score in scores):
        yield f"{where}: a candidate has no score in [0, 1]"
        return
    if any(candidate.logprob is None or not _LOWEST <= candidate.logprob <= 0 for candidate in made.candidates):
        yield f"{where}: a candidate has no log-probability in [{_LOWEST:g}, 0]"
        return
    best = max(score for score in scores if score is not None)
    texts = [candidate.text for candidate in made.candidates]
    if made != Decision(candidates=made.candidates, chosen_index=scores.index(best)):
        yield f"{where}: the choice is not the best candidate"
    elif texts[made.chosen_index] != step.action.raw_text:
        yield f"{where}: another action than the chosen candidate was played"


@dataclass
class KnownStates:
    """What the episodes of one task, seed and condition say of the states that they share."""

    actions: dict[Prefix, tuple[str, str]] = field(default_factory=dict)
    """The small policy's greedy action, and whose episode showed it."""
    scores: dict[tuple[str, Prefix, int], float] = field(default_factory=dict)
    """A score, by the method that it belongs to, state and LLM calls so far."""

    def contradictions(self, episode: Episode, score: str) -> Iterator[tuple[str, str]]:
        """(kind, text) for each step that says otherwise than an episode before, of which the method `score`'s score
        decided; then this one is remembered too."""
        prefix: Prefix = ()
        calls = 0
        for step in episode.steps:
            text, made = step.action.raw_text, step.decision
            if step.action_source == SLM and episode.method not in _OTHER_POLICIES:
                shown, whose = self.actions.setdefault(prefix, (text, episode.method))
                if shown != text:
                    yield (
                        "small policy's action",
                        f"step {step.step_idx} of {episode.method}: it acts otherwise in the same state of {whose}",
                    )
            if episode.method in ROUTERS and made is not None and made.p_escalate is not None:
                key = (score, prefix, calls)
                if self.scores.setdefault(key, made.p_escalate) != made.p_escalate:
                    yield (
                        "router score",
                        f"step {step.step_idx}: p_escalate is {made.p_escalate}, in the same state {self.scores[key]}",
                    )
            calls += step.action_source == LLM
            prefix = (*prefix, text)

    def score_at(self, method: str, prefix: Prefix, calls: int) -> float | None:
        """What a router scored in a state after so many LLM calls; None where it never met it."""
        return self.scores.get((method, prefix, calls))
