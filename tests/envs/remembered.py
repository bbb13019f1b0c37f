"""A world that plays every course of actions once: what many wrappers are tried on then costs one episode."""

from __future__ import annotations

from r2v.envs.base import Environment, Info, Task
from r2v.envs.guard import StepResult
from r2v.wire.message import ToolSpec

History = tuple[str, ...]


class Remembered:
    """An `Environment` around a real world: the same actions give what that world gave when they were first played."""

    def __init__(self, world: Environment) -> None:
        self._world = world
        self._openings: dict[tuple[int, str], tuple[str, Info]] = {}
        self._steps: dict[tuple[int, str, History], StepResult] = {}
        self._start: tuple[int, Task] | None = None
        self._history: History = ()
        self._played: tuple[int, str, History] | None = None
        """Where the real world is."""

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """The first observation; of the real world where nobody has begun so."""
        self._start, self._history = (seed, task), ()
        if (seed, task.task_id) not in self._openings:
            self._openings[seed, task.task_id] = self._world.reset(seed=seed, task=task)
            self._played = seed, task.task_id, ()
        return self._openings[seed, task.task_id]

    def step(self, action: str) -> StepResult:
        """What the world answers; played, from the reset where it stands elsewhere, if nobody has acted so."""
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
        """The world's."""
        return self._world.tool_specs()
