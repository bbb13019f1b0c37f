"""The audit of one episode: replayed with its bill, and held to other episodes in the same states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from r2v.config.methods import ROUTERS
from r2v.data.episode import Episode, Step
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.unproved import OTHER_POLICIES
from r2v.rollout.actors import Act, StepView
from r2v.rollout.recorded_actors import BEST_OF_K, LLM, SLM, RecordedActors
from r2v.rollout.replay import FAULT, UNANSWERED, Replay, replay_episode
from r2v.rollout.session import EpisodeSpec, RolloutWorld

Prefix = tuple[str, ...]
"""The actions before a step: with task, seed and condition they are the state."""


@dataclass
class KnownStates:
    """Actions and scores that the episodes of one task, seed and condition recorded of the states that they share."""

    actions: dict[Prefix, tuple[str, str]] = field(default_factory=dict)
    """The small policy's greedy action, and whose episode showed it."""
    scores: dict[tuple[str, Prefix, int], float] = field(default_factory=dict)
    """A score, by the method that it belongs to, state and LLM calls so far."""

    def contradictions(self, episode: Episode, score: str) -> Iterator[tuple[str, str]]:
        """Yield (kind, text) for each step that contradicts an earlier episode of the same state, where the score of
        the method `score` decided; then remember this episode too."""
        prefix: Prefix = ()
        calls = 0
        for step in episode.steps:
            text, decision = step.action.raw_text, step.decision
            own = text if step.action_source == SLM else None
            if step.proposal is not None and episode.method in ROUTERS:
                own = step.proposal.text
            if own is not None and episode.method not in (*OTHER_POLICIES, BEST_OF_K):
                shown, whose = self.actions.setdefault(prefix, (own, episode.method))
                if shown != own:
                    yield (
                        "small policy's action",
                        f"step {step.step_idx} of {episode.method}: it acts otherwise in the same state of {whose}",
                    )
            if episode.method in ROUTERS and decision is not None and decision.p_escalate is not None:
                key = (score, prefix, calls)
                if self.scores.setdefault(key, decision.p_escalate) != decision.p_escalate:
                    other = f"in the same state {self.scores[key]}"
                    yield "router score", f"step {step.step_idx}: p_escalate is {decision.p_escalate}, {other}"
            calls += step.action_source == LLM
            prefix = (*prefix, text)


@dataclass(frozen=True, kw_only=True)
class EpisodeAudit:
    """The audit of one episode: replayed with its bill, and held to others in the same states."""

    world: RolloutWorld
    actors: RecordedActors
    findings: Findings

    def check(
        self,
        name: str,
        method: str,
        threshold: float | None,
        spec: EpisodeSpec,
        episode: Episode,
        states: KnownStates,
        kept: Callable[[Episode], Episode] = lambda episode: episode,
        actor: Callable[[StepView, Step], Act] | None = None,
    ) -> Replay:
        """Audit an episode that is filed as `name`, in which the method's score decided at this threshold. `actor`
        replaces the method's own actor."""

        def by_method(view: StepView, step: Step) -> Act:
            return self.actors.act(view, method, step, threshold)

        if episode.method != spec.method:
            self._add("filed elsewhere", name, episode, f"says {episode.method}")
        played = replay_episode(self.world, spec, episode, actor or by_method, kept)
        for kind, text in played.problems:
            if not ((kind == FAULT and self.may_fail) or (kind == UNANSWERED and self.may_be_refused)):
                self._add(kind, name, episode, text)
        if len(played.views) == len(episode.steps):
            for kind, text in states.contradictions(episode, method):
                self._contradicted(kind, name, episode, text)
        return played

    @property
    def may_fail(self) -> bool:
        """True if a fault of the world may come once and not again."""
        able = self.world.benchmark.capabilities
        return able.needs_network or not able.deterministic

    @property
    def may_be_refused(self) -> bool:
        """True if a provider is asked, which may refuse; a scripted LLM refuses nothing."""
        return self.actors.teacher.provider != "scripted"

    def _contradicted(self, kind: str, name: str, episode: Episode, text: str) -> None:
        """A finding for the bundled models, which repeat their replies to the byte; elsewhere only an unproved
        value."""
        if self.actors.encode is not None:
            self._add(kind, name, episode, text)
        else:
            self.findings.unproven.setdefault(
                f"{kind} differs between episodes", "a model on another machine need not repeat itself to the byte"
            )

    def _add(self, kind: str, name: str, episode: Episode, text: str) -> None:
        self.findings.add(kind, f"{name} {episode.episode_id}: {text}")
