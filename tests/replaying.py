"""Replay: an episode's recorded actions, executed again in its environment. No model is called."""

from __future__ import annotations

from contextlib import closing

from r2v.data.episode import Episode
from r2v.envs.base import Task
from r2v.rollout.actors import Act
from r2v.rollout.session import EpisodeSpec, RolloutWorld, Session


def replay(world: RolloutWorld, episode: Episode, task: Task) -> str | None:
    """Execute an episode's recorded actions again; return None if the environment answers the same, else the
    difference.

    No model is called.
    """
    spec = EpisodeSpec(
        task=task, seed=episode.metadata.seed, condition=episode.condition, perturbation_seed=episode.perturbation_seed
    )
    session = world.start(spec)
    with closing(session):
        session.open()
        return _difference(session, episode)


def _difference(session: Session, episode: Episode) -> str | None:
    for step in episode.steps:
        if session.termination is not None:
            return f"the world ended the episode at step {step.step_idx}, the record goes on"
        if session.observations[-1] != step.observation.raw_text:
            return f"step {step.step_idx} shows another observation than recorded"
        session.apply(Act(text=step.action.raw_text, source=step.action_source))
    if session.termination != episode.termination:
        return f"recorded termination {episode.termination}, executed {session.termination or 'not over yet'}"
    if session.success != episode.success:
        return f"recorded success={str(episode.success).lower()}, executed success={str(session.success).lower()}"
    return None
