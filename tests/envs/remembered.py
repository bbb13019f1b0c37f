"""An environment that plays every sequence of actions once, so that trying many wrappers on it costs one episode."""

from __future__ import annotations

from r2v.envs.base import Environment, Info, Task
from r2v.envs.guard import StepResult
from r2v.wire.message import ToolSpec

History = tuple[str, ...]


class Remembered:
    """An `Environment` around a real one: the same actions get the answers of their first play."""

    def __init__(self, world: Environment) -> None:
        self._world = world
        self._openings: dict[tuple[int, str], tuple[str, Info]] = {}
        self._steps: dict[tuple[int, str, History], StepResult] = {}
        self._start: tuple[int, Task] | None = None
        self._history: History = ()
        self._played: tuple[int, str, History] | None = None
        """State of the real environment."""

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Return the first observation; reset the real environment if this start is new."""
        self._start, self._history = (seed, task), ()
        if (seed, task.task_id) not in self._openings:
            self._openings[seed, task.task_id] = self._world.reset(seed=seed, task=task)
            self._played = seed, task.task_id, ()
        return self._openings[seed, task.task_id]

    def step(self, action: str) -> StepResult:
        """Return the environment's answer; if the sequence is new, play it, from the reset if the real environment is
        elsewhere."""
        assert self._start is not None
        (seed, task), before = self._start, self._history
        self._history = (*before, action)
        course = seed, task.task_id, self._history
        if course not in self._steps:
            if self._played != (seed, task.task_id, before):
                self._world.reset(seed=seed, task=task)
                for earlier in before:
                    self._world.step(earlier)
            self._steps[course] = self._world.step(action)
            self._played = course
        return self._steps[course]

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return the real environment's tools."""
        return self._world.tool_specs()
