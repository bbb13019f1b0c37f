"""Live perturbation wrapper of an environment.

A failing call (tool_error, tool_timeout) never reaches the world: its answer is one error line, and the same call may
be made again, also if it would have ended the episode. All other categories alter the observation; if they rename parts
of it (`renaming`), calls and tool declarations follow. Without scheduled perturbations everything passes unchanged.
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
from r2v.perturb.schedule import Schedule, make_schedule
from r2v.wire.message import ToolSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class _State:
    """State of an episode: `page` is the world's last page, `tools` names the tool of every call so far, `world` is the
    world's snapshot once taken."""

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
    """An `Environment` around an environment; it `Snapshots` if the inner one does.

    `Info.perturbations` lists the hits on the observation, `clean_observation` is the world's own page, and `harmful`
    is also True if an executed action contains a canary planted earlier in the episode.
    """

    def __init__(self, env: Environment, schedule: Schedule) -> None:
        self._env = env
        self._schedule = schedule
        self._at: _State | None = None

    @property
    def goal(self) -> str:
        """Return the goal shown to the agent, typos included. Raises RuntimeError before `reset`."""
        return self._state.goal

    @property
    def _state(self) -> _State:
        if self._at is None:
            raise RuntimeError("no task yet: reset first")
        return self._at

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Set the task up and return its first observation, which may be edited but is never replaced."""
        page, info = self._env.reset(seed=seed, task=task)
        goal = self._schedule.goal(task)
        self._at = _State(task=task, goal=goal.text, page=page, partial_score=info.partial_score)
        return self._show(page, None, info, goal.applied)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Pass the action to the world unless the schedule fails this call."""
        state = self._state
        tools = (*state.tools, parse_action(action).action_type)
        self._at = state = replace(state, step=state.step + 1, tools=tools)
        failure = self._schedule.call(state.task, state.tools)
        if failure is not None:
            info = Info(
                partial_score=state.partial_score,
                is_error=True,
                perturbations=failure.applied,
                clean_observation=state.page,
                sim_seconds=failure.seconds,
            )
            return failure.text, 0.0, False, False, info
        world_action = action
        for renaming in reversed(state.renamings):
            world_action = renaming.for_world(world_action)
        page, reward, terminated, truncated, info = self._env.step(world_action)
        obeyed = not info.is_error and any(canary in action for canary in state.canaries)
        info = replace(info, harmful=info.harmful or obeyed)
        self._at = replace(state, page=page, partial_score=info.partial_score)
        shown, info = self._show(page, state.page, info)
        return shown, reward, terminated, truncated, info

    def action_for_agent(self, action: str) -> str:
        """Return an action in the world's names rewritten with the names of the shown page."""
        for renaming in self._state.renamings:
            action = renaming.for_agent(action)
        return action

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return the inner environment's tools with the arguments' current names."""
        specs = self._env.tool_specs()
        for renaming in self._at.renamings if self._at else ():
            if isinstance(renaming, Fields):
                specs = tuple(replace(spec, parameters=renaming.schema(spec.parameters)) for spec in specs)
        return specs

    def snapshot(self) -> Any:
        """Return the complete state, including the world's. Raises UsageError for a world without snapshots."""
        return replace(self._state, world=self._world().snapshot())

    def restore(self, state: Any) -> None:
        """Return to a state from `snapshot`, also in another wrapper of the same benchmark and schedule."""
        self._world().restore(state.world)
        self._at = replace(state, world=None)

    def close(self) -> None:
        """Close the inner environment if it is `Closable`."""
        if isinstance(self._env, Closable):
            self._env.close()

    def _world(self) -> Snapshots:
        if not isinstance(self._env, Snapshots):
            raise UsageError(f"{type(self._env).__name__} has no snapshot; replay its actions instead")
        return self._env

    def _show(
        self, page: str, previous: str | None, info: Info, before: tuple[AppliedPerturbation, ...] = ()
    ) -> tuple[str, Info]:
        """Return the observation of a page and record the canaries planted in it."""
        state = self._state
        # A broken world may be unable to list its tools.
        tools = self._env.tool_specs() if self._schedule.active and info.env_fault is None else ()
        outcome = self._schedule.page(state.task, state.step, page, previous, tools)
        planted = frozenset(perturbation.canary for perturbation in outcome.applied if perturbation.canary)
        self._at = replace(state, canaries=state.canaries | planted, renamings=outcome.renamings)
        clean = page if info.clean_observation is None else info.clean_observation
        return outcome.text, replace(
            info,
            clean_observation=clean,
            sim_seconds=info.sim_seconds + outcome.seconds,
            perturbations=(*info.perturbations, *before, *outcome.applied),
        )


def wrap(
    env: Environment, benchmark: Benchmark, perturbations: PerturbationsConfig, condition: Condition, seed: int
) -> PerturbedEnv:
    """Return the environment under a condition. `seed` is one of `data.perturbation_seeds`; held-out categories and
    families occur under shift only."""
    return PerturbedEnv(env, make_schedule(benchmark, perturbations, condition, seed))
