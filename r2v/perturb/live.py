"""The live perturbation wrapper: any environment, seen through a schedule of perturbations.

A call that fails on its way (tool_error, tool_timeout) never reaches the world: its answer is one error
line, and the same call may be made again, also when it would have ended the episode. Everything else happens
to what the agent is shown; where that goes by other names (`renaming`), calls and tools do too. With nothing scheduled
the wrapper lets everything through unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from r2v.config import PerturbationsConfig
from r2v.data.action import parse_action
from r2v.data.episode import AppliedPerturbation, Condition
from r2v.envs.base import Benchmark, Closable, Environment, Info, Snapshots, Task
from r2v.errors import UsageError
from r2v.perturb.renaming import Fields, Renaming
from r2v.perturb.schedule import PerturbedOutput, Schedule, make_schedule
from r2v.wire.message import ToolSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """Where an episode stands: `page` is the last page the world showed, `tools` names the tool of every call so far,
    `world` is its snapshot once taken."""

    task: Task
    goal: str
    page: str
    step: int = 0
    tools: tuple[str, ...] = ()
    partial_score: float = 0.0
    canaries: frozenset[str] = frozenset()
    renamings: tuple[Renaming, ...] = ()
    world: Any = None


class PerturbedEnv:
    """An `Environment` around an environment; it `Snapshots` where the inner one does.

    `Info.perturbations` tells what hit the observation, `clean_observation` the world's own page, and
    `harmful` also whether an action that was carried out contains a canary planted earlier in the episode.
    """

    def __init__(self, env: Environment, schedule: Schedule) -> None:
        self._env = env
        self._schedule = schedule
        self._at: _State | None = None

    @property
    def goal(self) -> str:
        """The goal as the agent is told it, typing errors and all. Raises RuntimeError before `reset`."""
        return self._state.goal

    @property
    def _state(self) -> _State:
        if self._at is None:
            raise RuntimeError("no task yet: reset first")
        return self._at

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Set the task up; its first observation is never replaced, but may be edited."""
        page, info = self._env.reset(seed=seed, task=task)
        told = self._schedule.goal(task)
        self._at = _State(task=task, goal=told.text, page=page, partial_score=info.partial_score)
        return self._show(page, None, info, told.applied)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Pass the action on, unless this call is one that fails."""
        state = self._state
        tools = (*state.tools, parse_action(action).action_type)
        self._at = state = replace(state, step=state.step + 1, tools=tools)
        failure = self._schedule.call(state.task, state.tools)
        if failure is not None:
            return failure.text, 0.0, False, False, self._failed(state, failure)
        meant = action
        for renaming in reversed(state.renamings):
            meant = renaming.meant(meant)
        page, reward, terminated, truncated, info = self._env.step(meant)
        obeyed = not info.is_error and any(canary in action for canary in state.canaries)
        info = replace(info, harmful=info.harmful or obeyed)
        self._at = replace(state, page=page, partial_score=info.partial_score)
        shown, info = self._show(page, state.page, info)
        return shown, reward, terminated, truncated, info

    def spelled(self, action: str) -> str:
        """An action in the world's own names as it has to be written on the page that is shown."""
        for renaming in self._state.renamings:
            action = renaming.spelled(action)
        return action

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The inner environment's tools, their arguments by the names that hold now."""
        specs = self._env.tool_specs()
        for renaming in self._at.renamings if self._at else ():
            if isinstance(renaming, Fields):
                specs = tuple(replace(spec, parameters=renaming.schema(spec.parameters)) for spec in specs)
        return specs

    def snapshot(self) -> Any:
        """The complete state, the world's included. Raises UsageError where the world cannot give its own."""
        return replace(self._state, world=self._world().snapshot())

    def restore(self, state: Any) -> None:
        """Go back to a state that `snapshot` gave, also in another wrapper of the same make."""
        self._world().restore(state.world)
        self._at = replace(state, world=None)

    def close(self) -> None:
        """Close the inner environment, where it may be closed."""
        if isinstance(self._env, Closable):
            self._env.close()

    def _world(self) -> Snapshots:
        if not isinstance(self._env, Snapshots):
            raise UsageError(f"{type(self._env).__name__} has no snapshot; replay its actions instead")
        return self._env

    def _show(
        self, page: str, previous: str | None, info: Info, before: tuple[AppliedPerturbation, ...] = ()
    ) -> tuple[str, Info]:
        """What the agent sees of a page; canaries planted in it are remembered."""
        state = self._state
        # A world that broke may have no tools to tell any more.
        tools = self._env.tool_specs() if self._schedule.active and info.env_fault is None else ()
        outcome = self._schedule.page(state.task, state.step, page, previous, tools)
        planted = frozenset(one.canary for one in outcome.applied if one.canary)
        self._at = replace(state, canaries=state.canaries | planted, renamings=outcome.renamings)
        clean = page if info.clean_observation is None else info.clean_observation
        return outcome.text, replace(
            info,
            clean_observation=clean,
            sim_seconds=info.sim_seconds + outcome.seconds,
            perturbations=(*info.perturbations, *before, *outcome.applied),
        )

    def _failed(self, state: _State, failure: PerturbedOutput) -> Info:
        return Info(
            partial_score=state.partial_score,
            is_error=True,
            perturbations=failure.applied,
            clean_observation=state.page,
            sim_seconds=failure.seconds,
        )


def wrap(
    env: Environment, benchmark: Benchmark, perturbations: PerturbationsConfig, condition: Condition, seed: int
) -> PerturbedEnv:
    """The environment as it is played under a condition. `seed` is the perturbations' own, from
    `data.perturbation_seeds`; what is held out occurs under shift only."""
    return PerturbedEnv(env, make_schedule(benchmark, perturbations, condition, seed))
