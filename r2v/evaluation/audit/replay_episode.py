"""Replay of one episode: its recorded actions are played again, and the whole record is made anew from what happens.

Whatever the world decides is compared leaf by leaf: success, termination, rewards, observations, perturbations, safety
labels, a claimed fault, goal, split and seeds. So is every decision of an actor that is given; what an episode cost is
left to `check_bills`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from r2v.config.methods import ROUTERS
from r2v.data.episode import MODEL_FAILURES, Episode, Step, Tokens, to_dict
from r2v.envs.base import Unjudged
from r2v.evaluation.audit.check_bills import Bills
from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.audit.recorded_actors import BEST_OF_K, LLM, SLM, NoRecord, RecordedActors
from r2v.llm.types import Reply, Sample, Usage
from r2v.rollout.actors import Act, StepView
from r2v.rollout.session import EpisodeSpec, RolloutWorld, Session

_NOT_THE_WORLDS = ("tokens", "total_cost", "cached_cost", "sim_time_seconds", "wall_time_seconds")
_SHOWN = 60
FAULT, UNANSWERED = "claimed fault", "claimed refusal"
NO_ANSWER = tuple(kind for kind in MODEL_FAILURES if kind != "unparsed")


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What playing an episode's actions again came to."""

    views: tuple[StepView, ...]
    """What an actor saw before each action."""
    tokens: Tokens
    """Tokens that the actor's acts are billed for."""
    seconds: float
    """Simulated seconds of the world and of those acts."""
    problems: tuple[tuple[str, str], ...]
    """(kind, what differs)."""
    fault_given: bool
    """True if the world ended the episode by a fault here too."""


def recorded_act(view: StepView, step: Step) -> Act:
    """The recorded act of a step, without a bill."""
    proposal = None
    if step.proposal is not None:
        usage = Usage(tokens_in=step.proposal.tokens_in, tokens_out=step.proposal.tokens_out)
        proposal = Reply(samples=(Sample(text=step.proposal.text),), usage=usage, model="")
    return Act(
        text=step.action.raw_text,
        source=step.action_source,
        decision=step.decision,
        proposal=proposal,
        said=step.said,
        reply_id=step.reply_id,
    )


def replay_episode(
    world: RolloutWorld,
    spec: EpisodeSpec,
    episode: Episode,
    actor: Callable[[StepView, Step], Act] = recorded_act,
    kept: Callable[[Episode], Episode] = lambda episode: episode,
) -> Replay:
    """Play the actions of an episode in the world of `spec`, which says what the plan says of it; the actor says how
    each was chosen, and `kept` makes of a whole episode what is recorded of it. Never raises for what an episode holds:
    a world that a hostile action breaks is a finding."""
    views: list[StepView] = []
    chosen: list[tuple[str, str]] = []
    session = world.start(spec)
    try:
        session.open()
        for step in episode.steps:
            if session.termination is not None:
                text = f"the world ended the episode at step {step.step_idx}, the record goes on"
                return _outcome(session, views, [("replay", text)])
            views.append(session.view())
            session.apply(_chosen(actor, views[-1], step, chosen))
    except Unjudged as error:
        return _unplayed("unjudged", str(error))
    except Exception as error:  # an action is a stranger's text, and a world may raise anything at it
        return _unplayed("replay", f"{type(error).__name__}: {error}")
    finally:
        session.close()
    return _outcome(session, views, [*chosen, *_differences(session, kept(session.episode()), episode)])


def _unplayed(kind: str, text: str) -> Replay:
    return Replay(views=(), tokens=Tokens(), seconds=0.0, problems=((kind, text),), fault_given=False)


def _chosen(actor: Callable[[StepView, Step], Act], view: StepView, step: Step, problems: list[tuple[str, str]]) -> Act:
    """The actor's act with the recorded action, so that the replay stays on its path."""
    try:
        act = actor(view, step)
    except NoRecord as error:
        problems.append(("decision", f"step {step.step_idx}: {error}"))
        return recorded_act(view, step)
    if act.text != step.action.raw_text:
        problems.append(
            (
                "action",
                f"step {step.step_idx}: {act.source} acts {_short(act.text)}, not {_short(step.action.raw_text)}",
            )
        )
    return replace(act, text=step.action.raw_text)


def _outcome(session: Session, views: list[StepView], problems: list[tuple[str, str]]) -> Replay:
    executed = session.episode()
    return Replay(
        views=tuple(views),
        tokens=executed.tokens,
        seconds=executed.sim_time_seconds,
        problems=tuple(problems),
        fault_given=session.infos[-1].env_fault is not None,
    )


def _differences(session: Session, executed: Episode, episode: Episode) -> Iterator[tuple[str, str]]:
    if episode.env_fault is not None and executed.env_fault is None:
        yield FAULT, f"says {episode.env_fault!r}, and the world gives none"
    if episode.outcome in NO_ANSWER and session.termination is None:
        yield UNANSWERED, f"says that a model gave no answer ({episode.outcome}), which no replay shows"
    elif session.termination is None and episode.env_fault is None:
        yield "termination", f"recorded termination {episode.termination}, executed not over yet"
    if episode.success != executed.success:
        words = [str(value).lower() for value in (episode.success, executed.success)]
        yield "success", f"recorded success={words[0]}, executed success={words[1]}"
    recorded, played = to_dict(episode), to_dict(executed)
    for name in _NOT_THE_WORLDS:
        recorded.pop(name), played.pop(name)
    if episode.wall_time_seconds is not None:
        yield "wall_time_seconds", "is not recorded in an evaluation"
    skipped = {"success", "env_fault", "outcome_reason"} | (
        {"termination", "outcome"} if session.termination is None else set()
    )
    for path, ours, theirs in _unequal(recorded, played, ""):
        name, *below = (part.partition("[")[0] for part in path.split(".")[1:])
        if name not in skipped:
            kind = below[0] if below and name == "steps" else path.rsplit(".", 1)[1].partition("[")[0]
            yield kind, f"{path[1:]} is {_short(ours)}, executed {_short(theirs)}"


def _unequal(recorded: Any, played: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The leaves in which two records differ."""
    if isinstance(recorded, dict) and isinstance(played, dict) and recorded.keys() == played.keys():
        for name, value in recorded.items():
            yield from _unequal(value, played[name], f"{path}.{name}")
    elif isinstance(recorded, list) and isinstance(played, list) and len(recorded) == len(played):
        for index, value in enumerate(recorded):
            yield from _unequal(value, played[index], f"{path}[{index}]")
    elif recorded != played or type(recorded) is not type(played):
        yield path, recorded, played


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


Prefix = tuple[str, ...]
"""The actions before a step: with task, seed and condition they are the state."""
_OTHER_POLICIES = ("slm_bc_only", "slm_base", BEST_OF_K)
"""Methods whose small policy is another one, or does not act greedily."""


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
            own = text if step.action_source == SLM else None
            if step.proposal is not None and episode.method in ROUTERS:
                own = step.proposal.text
            if own is not None and episode.method not in _OTHER_POLICIES:
                shown, whose = self.actions.setdefault(prefix, (own, episode.method))
                if shown != own:
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


@dataclass(frozen=True, kw_only=True)
class EpisodeAudit:
    """The audit of one episode: replayed, billed, and held to what others say of the same states."""

    world: RolloutWorld
    actors: RecordedActors
    bills: Bills
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
        """Audit an episode that is filed as `name`, of which the method's score decided at this threshold; an `actor`
        says otherwise who acts."""

        def by_method(view: StepView, step: Step) -> Act:
            return self.actors.act(view, method, step, threshold)

        if episode.method != spec.method:
            self._add("filed elsewhere", name, episode, f"says {episode.method}")
        played = replay_episode(self.world, spec, episode, actor or by_method, kept)
        for kind, text in played.problems:
            if not ((kind == FAULT and self.may_fail) or (kind == UNANSWERED and self.may_be_refused)):
                self._add(kind, name, episode, text)
        if len(played.views) == len(episode.steps):
            uncounted = self.actors.open_tokens(method, [step.action_source for step in episode.steps])
            for kind, text in self.bills.problems(episode, played.tokens, played.seconds, uncounted):
                self._add(kind, name, episode, text)
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
        return self.actors.settings.teacher.provider != "scripted"

    def _contradicted(self, kind: str, name: str, episode: Episode, text: str) -> None:
        """Replies are promised to repeat to the byte for the bundled models; elsewhere a difference is only told."""
        if self.actors.encode is not None:
            self._add(kind, name, episode, text)
        else:
            self.findings.unproven.setdefault(
                f"{kind} differs between episodes", "a model on another machine need not repeat itself to the byte"
            )

    def _add(self, kind: str, name: str, episode: Episode, text: str) -> None:
        self.findings.add(kind, f"{name} {episode.episode_id}: {text}")
