"""Forks: points of an episode from which other actions are executed, to value candidates, label steps and decide for
the oracle.

    point = await waves.world(fork, session)     # before an action
    twin = point.session()                       # any number of times, also when the episode is long over
    episode = await twin.finish(actor, waves)

A fork holds no world, only the history so far and a snapshot where the world has them. Each branch makes a world of its
own, restores the snapshot or replays the actions from reset, and closes the world at its end. So no more worlds are
alive at once than conversations and running branches.
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
    """True if the task changes a world that others share. It is played, never branched: a branch would need the site to
    itself and leave it changed, dozens of times an episode."""
    return task.mutates and not benchmark.capabilities.parallel


def branchable(benchmark: Benchmark, specs: Sequence[EpisodeSpec], what: str) -> list[EpisodeSpec]:
    """Return the episodes that may be branched, and log how many are skipped; `what` names the work. Raises EmptyResult
    where none is left."""
    branched = [spec for spec in specs if not changes_shared_world(benchmark, spec.task)]
    if specs and not branched:
        raise EmptyResult(
            f"{what}: all {len(specs)} episodes change a world that others share, and those are never branched; choose "
            "more tasks, or ones that only read"
        )
    if len(branched) < len(specs):
        logger.info(
            "  branching skips episodes that change a shared world: work=%s skipped=%d/%d",
            *(what, len(specs) - len(branched), len(specs)),
        )
    return branched


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """The history of an episode up to a point."""

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
    """The reason why no snapshot could be taken; it ends every session of the fork."""

    def session(self) -> Session:
        """Return an independent session at this point. Its world is made when it is opened."""
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
            except WorldFault as fault:  # ends this branch alone
                return str(fault)
            return None
        # without snapshots: the same seed and actions lead to the same state
        _, info = env.reset(seed=self.spec.seed, task=self.spec.task)
        for act in self.acts:
            if info.env_fault is not None:
                break
            *_, info = env.step(act.text)
        return info.env_fault


def fork(session: Session) -> Fork:
    """Return a fork of the session here. It calls the world where that has snapshots."""
    state, fault = None, None
    if session.termination is None and session.world.benchmark.capabilities.snapshot:
        try:
            state = session.snapshot()
        except WorldFault as broke:  # the branches cannot be measured; the episode itself may go on
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
