"""Environment of a world in a child process, with limits per reset, step and episode.

The world's `reset(seed, task)` and `step(action)` return one JSON object: `observation`, after a step also
`reward`, `terminated` and `truncated`, and fields of `Info`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from r2v.envs.base import Info, Task
from r2v.envs.worker.pool import WorkerPool
from r2v.envs.worker.process import Worker, WorkerFault
from r2v.wire.message import ToolSpec

_INFO = ("success", "partial_score", "is_error", "harmful", "env_fault", "extra")


@dataclass(frozen=True, kw_only=True)
class WorldLimits:
    """Time limits of a world in seconds. Exceeding one is a fault of the world, and its process is killed."""

    reset_seconds: float = 120.0
    step_seconds: float = 60.0
    episode_seconds: float = 3600.0
    """Sum over an episode's resets and steps; the agent's time does not count."""


class WorkerEnvironment:
    """An `Environment` whose world runs in a worker of the pool."""

    def __init__(self, pool: WorkerPool, *, limits: WorldLimits, tools: tuple[ToolSpec, ...]) -> None:
        self._pool, self._limits, self._tools = pool, limits, tools
        self._worker: Worker | None = None
        self._spent = 0.0

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Set the task up and return the first observation, or an empty one and a fault."""
        self._spent = 0.0
        arguments = {"seed": seed, "task": asdict(task)}
        try:
            answer = self._call("reset", arguments, self._limits.reset_seconds)
        except WorkerFault as fault:
            return "", Info(env_fault=str(fault))
        return str(answer["observation"]), _info(answer)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carry out an action; a failure of the world ends the episode with a fault."""
        if self._worker is None:
            return "", 0.0, False, True, Info(env_fault="step: the world's process is gone")
        try:
            answer = self._call("step", {"action": action}, self._limits.step_seconds)
        except WorkerFault as fault:
            return "", 0.0, False, True, Info(env_fault=str(fault))
        ended = bool(answer["terminated"]), bool(answer["truncated"])
        return str(answer["observation"]), float(answer["reward"]), *ended, _info(answer)

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools, without starting a world."""
        return self._tools

    def close(self) -> None:
        """Return the worker to the pool."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.give(worker)

    def _call(self, method: str, arguments: Mapping[str, Any], limit: float) -> Mapping[str, Any]:
        """Return an answer within `limit` and the episode's remaining seconds. Raises WorkerFault once the worker is
        killed."""
        left = self._limits.episode_seconds - self._spent
        since = time.monotonic()
        try:
            if self._worker is None:
                self._worker = self._pool.take()
            answer = self._worker.call(method, arguments, seconds=min(limit, left))
            missing = {"observation", *(("reward", "terminated", "truncated") if method == "step" else ())} - set(
                answer
            )
            if missing:
                self._worker.kill()
                raise WorkerFault(f"{method}: the world's answer lacks {', '.join(sorted(missing))}")
        except WorkerFault as fault:
            self._worker = None
            if left < limit and "no answer within" in str(fault):
                raise WorkerFault(
                    f"{method}: the episode took {self._limits.episode_seconds:g} s in the world"
                ) from fault
            raise
        finally:
            self._spent += time.monotonic() - since
        return dict(answer)


def _info(answer: Mapping[str, Any]) -> Info:
    return Info(**{name: answer[name] for name in _INFO if name in answer})
