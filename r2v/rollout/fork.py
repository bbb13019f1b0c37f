"""Forks: points of an episode from which another can be played. So candidates are valued, branches labelled and the
oracle decides by executing, never by assuming.

    point = await waves.world(fork, session)     # before an action
    twin = point.session()                       # any number of times, also when the episode is long over
    episode = await twin.finish(actor, waves)

A fork is a recipe and holds no world: what happened so far, and the world's snapshot where it has one. A world is made
where a branch is played, put in the snapshot's state or led there by replaying the actions from reset, and closed when
the branch ends. So worlds alive at once are never more than conversations and running branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from r2v.data.episode import Termination
from r2v.envs.base import Benchmark, Info, Task
from r2v.envs.guard import WorldFault
from r2v.errors import EmptyResult
from r2v.log import logger
from r2v.perturb import PerturbedEnv
from r2v.rollout.actors import Act
from r2v.rollout.session import EpisodeSpec, RolloutWorld, Session


def changes_shared_world(benchmark: Benchmark, task: Task) -> bool:
    """Whether the task changes a world that others share. It is played, never branched: a branch would need the site to
    itself and leave it changed, dozens of times an episode."""
    return task.mutates and not benchmark.capabilities.parallel


def branchable(benchmark: Benchmark, specs: Sequence[EpisodeSpec], what: str) -> list[EpisodeSpec]:
    """The episodes that may be branched; how many `what` leaves out is said. Raises EmptyResult where it leaves out
    all."""
    branched = [spec for spec in specs if not changes_shared_world(benchmark, spec.task)]
    if specs and not branched:
        raise EmptyResult(
            f"{what}: all {len(specs)} episodes change a world that others share, and those are never branched; choose "
            "more tasks, or ones that only read"
        )
    if len(branched) < len(specs):
        logger.info(
            "  %s: %d of %d episodes change a world that others share: never branched, left out",
            *(what, len(specs) - len(branched), len(specs)),
        )
    return branched


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """What happened up to a point of an episode."""

    world: RolloutWorld
    spec: EpisodeSpec
    goal: str
    observations: tuple[str, ...]
    infos: tuple[Info, ...]
    acts: tuple[Act, ...]
    rewards: tuple[float, ...]
    termination: Termination | None
    state: Any = None
    """The world's snapshot; None: the actions are replayed."""
    fault: str | None = None
    """Why no snapshot could be taken: it ends every session that is made of the fork."""

    def session(self) -> Session:
        """An independent session at this point. Its world is made when it is opened."""
        twin = Session(self.world, self.spec, self._catch_up)
        twin.goal, twin.termination = self.goal, self.termination
        twin.observations, twin.infos = list(self.observations), list(self.infos)
        twin.acts, twin.rewards = list(self.acts), list(self.rewards)
        if self.fault is not None:
            twin.fault(self.fault)
        return twin

    def _catch_up(self, env: PerturbedEnv) -> str | None:
        if self.world.benchmark.capabilities.snapshot:
            try:
                env.restore(self.state)
            except WorldFault as fault:
                return str(fault)
            return None
        _, info = env.reset(seed=self.spec.seed, task=self.spec.task)
        for act in self.acts:
            if info.env_fault is not None:
                break
            *_, info = env.step(act.text)
        return info.env_fault


def fork(session: Session) -> Fork:
    """A fork of the session here. It calls the world where that has snapshots."""
    state, fault = None, None
    if session.termination is None and session.world.benchmark.capabilities.snapshot:
        try:
            state = session.snapshot()
        except WorldFault as broke:
            fault = str(broke)
    return Fork(
        world=session.world,
        spec=session.spec,
        goal=session.goal,
        observations=tuple(session.observations),
        infos=tuple(session.infos),
        acts=tuple(session.acts),
        rewards=tuple(session.rewards),
        termination=session.termination,
        state=state,
        fault=fault,
    )
