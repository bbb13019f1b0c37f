"""Counterfactual rollouts: the same state, another action, executed to the end.

    played = await rollout_with_snapshots(world.start(spec), slm, waves)     # an episode, and a fork at every step
    twin = await play_counterfactual(played.snapshots[3], action, slm, waves)
    gain = twin.success - played.episode.success

Hazards are keyed by step and greedy policies draw nothing, so both branches meet the same luck: the recorded
roll-out is its own counterfactual, and one more continuation gives the paired difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from r2v.data.episode import Decision, Episode, with_hashed_observations
from r2v.llm.waves import Waves
from r2v.rollout.actors import Act, Actor, GreedyActor, StepView
from r2v.rollout.fork import Fork, fork
from r2v.rollout.session import EpisodeSpec, RolloutWorld, Session

BRANCHED_AT = "branched_at"
"""Key of `Episode.extra`: the step at which a stored branch leaves its episode."""


@dataclass(frozen=True)
class StepSnapshot:
    """One step of an episode: a fork before the action, the actor's view, the act."""

    before: Fork
    view: StepView
    act: Act


@dataclass(frozen=True)
class SnapshotRollout:
    """An episode with a snapshot of each step, from which branches can be played."""

    episode: Episode
    snapshots: tuple[StepSnapshot, ...]


async def rollout_with_snapshots(session: Session, actor: Actor, waves: Waves) -> SnapshotRollout:
    """Play to the end, keeping a fork before every action."""
    snapshots: list[StepSnapshot] = []

    async def keep(current: Session, act: Act) -> None:
        snapshots.append(StepSnapshot(await waves.world(fork, current), current.view(), act))

    return SnapshotRollout(await session.finish(actor, waves, before_action=keep), tuple(snapshots))


async def play_counterfactual(point: Fork, act: Act, actor: Actor, waves: Waves) -> Episode:
    """Play `act` at this point, then `actor` to the end, in a world of their own; return the episode. Where the world
    breaks, its `env_fault` is the reason, and nothing was measured."""
    twin = point.session()
    async with twin.live(waves):
        if twin.termination is None:  # a world that could not be brought to the point has ended the episode already
            await waves.world(twin.apply, act)
        await twin.finish(actor, waves)
    return twin.episode()


def branch_record(branch: Episode, step: int) -> Episode:
    """Return a branch in its stored form: hashes in place of observations, and BRANCHED_AT in `extra`."""
    return with_hashed_observations(replace(branch, extra={**branch.extra, BRANCHED_AT: step}))


def failed(branch: Episode) -> bool:
    """True if the small policy fails after this action: False where the world broke on the way."""
    return branch.env_fault is None and not branch.success


def saves(branch: Episode) -> bool:
    """True if the small policy succeeds after this action: False where the world broke on the way."""
    return branch.env_fault is None and branch.success


async def play_oracle(
    world: RolloutWorld,
    spec: EpisodeSpec,
    slm: GreedyActor,
    llm: GreedyActor,
    waves: Waves,
    tried: list[Episode] | None = None,
) -> Episode:
    """Play the myopic oracle: at each step both continuations are executed, and the LLM acts only where the small
    policy would fail from here and an LLM step now saves it. Branches are not billed, played steps are. It looks one
    escalation ahead, so it is a reference for routers and not an upper bound. The branches, in their stored form, are
    added to `tried`: the small policy's, then, where that fails, the LLM's."""
    session, branches = world.start(spec), [] if tried is None else tried

    async def ends(point: Fork, act: Act, step: int) -> Episode:
        branch = await play_counterfactual(point, act, slm, waves)
        branches.append(branch_record(branch, step))
        return branch

    async def asks(own: Act, llm_act: Act, step: int) -> bool:
        if own.text == llm_act.text:  # equal actions have equal outcomes
            return False
        point = await waves.world(fork, session)
        return failed(await ends(point, own, step)) and saves(await ends(point, llm_act, step))

    async with session.live(waves):
        while session.termination is None:
            view = session.view()
            own = await slm.act(view)
            llm_act = replace(await llm.act(view), source="llm_fallback", decision=Decision(escalated=True))
            await waves.world(session.apply, llm_act if await asks(own, llm_act, view.step) else own)
    return session.episode()


def canaries_seen(step: StepSnapshot) -> tuple[str, ...]:
    """Return the canaries of the instructions injected into the observations so far."""
    return tuple(p.canary for info in step.before.infos for p in info.perturbations if p.canary)
