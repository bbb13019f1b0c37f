"""Replay of one episode: its recorded actions are played again, and the record is rebuilt from the outcome.

    replay_episode(world, spec, episode).problems       # empty where the rebuilt record equals the stored one

Every value that the world decides is compared: success, termination, rewards, observations, perturbations, safety
labels, a claimed fault, goal, split and seeds. With an actor, its decisions and bill are compared too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from r2v.data.episode import MODEL_FAILURES, Episode, Step, Tokens, to_dict
from r2v.envs.base import Unjudged
from r2v.llm.types import Reply, Sample, Usage
from r2v.rollout.actors import Act, StepView
from r2v.rollout.bill import StepBill
from r2v.rollout.recorded_actors import NoRecord
from r2v.rollout.session import EpisodeSpec, RolloutWorld, Session

_BILL = ("tokens", "total_cost", "cached_cost", "sim_time_seconds")
_SHOWN = 60
_ROUNDED_USD = 2e-10
"""Tolerance in USD between two sums over the same tokens: a verifier's reads of several actions are one count."""
FAULT, UNANSWERED = "claimed fault", "claimed refusal"
NO_ANSWER = tuple(kind for kind in MODEL_FAILURES if kind != "unparsed")


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The outcome of playing an episode's actions again."""

    views: tuple[StepView, ...]
    """The actor's view before each action."""
    problems: tuple[tuple[str, str], ...]
    """(kind, difference)."""
    fault_given: bool
    """True if the world ended the episode by a fault here too."""


def recorded_act(view: StepView, step: Step) -> Act:
    """Return the recorded act of a step; its bill holds the recorded tokens alone."""
    proposal = None
    if step.proposal is not None:
        usage = Usage(tokens_in=step.proposal.tokens_in, tokens_out=step.proposal.tokens_out)
        proposal = Reply(samples=(Sample(text=step.proposal.text),), usage=usage, model="")
    return Act(
        text=step.action.raw_text,
        source=step.action_source,
        bill=StepBill(tokens=step.tokens or Tokens()),
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
    stored: Callable[[Episode], Episode] = lambda episode: episode,
) -> Replay:
    """Play the actions of an episode again in the world of `spec`, the planned episode. `actor` gives the decision and
    bill of each action; `stored` turns a whole episode into its stored form. Never raises for an episode's content: a
    world that a hostile action breaks is a problem in the result."""
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
    except Exception as error:  # actions come from an untrusted file, and a world may raise anything
        return _unplayed("replay", f"{type(error).__name__}: {error}")
    finally:
        session.close()
    differences = _differences(session, stored(session.episode()), episode, billed=actor is not recorded_act)
    return _outcome(session, views, [*chosen, *differences])


def _unplayed(kind: str, text: str) -> Replay:
    return Replay(views=(), problems=((kind, text),), fault_given=False)


def _chosen(actor: Callable[[StepView, Step], Act], view: StepView, step: Step, problems: list[tuple[str, str]]) -> Act:
    """Return the actor's act with the recorded action, so that the replay stays on its path."""
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
    given = session.infos[-1].env_fault is not None
    return Replay(views=tuple(views), problems=tuple(problems), fault_given=given)


def _differences(session: Session, executed: Episode, episode: Episode, *, billed: bool) -> Iterator[tuple[str, str]]:
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
    for name in () if billed else _BILL:
        played[name] = recorded[name]
    for name in ("total_cost", "cached_cost"):
        if isinstance(recorded_usd := recorded[name], float) and abs(recorded_usd - played[name]) < _ROUNDED_USD:
            played[name] = recorded_usd
    played["wall_time_seconds"] = recorded["wall_time_seconds"]  # a replay takes its own time
    if episode.wall_time_seconds is not None:
        yield "wall_time_seconds", "is not recorded in an evaluation"
    skipped = {"success", "env_fault", "outcome_reason"} | (
        {"termination", "outcome"} if session.termination is None else set()
    )
    for path, ours, theirs in _unequal(recorded, played, ""):
        name, *below = (part.partition("[")[0] for part in path.split(".")[1:])
        if name not in skipped:
            leaf = path.rsplit(".", 1)[1].partition("[")[0]
            kind = below[0] if below and name == "steps" else name if name in _BILL else leaf
            yield kind, f"{path[1:]} is {_short(ours)}, executed {_short(theirs)}"


def _unequal(recorded: Any, played: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, recorded, played) of the leaves in which two records differ."""
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
