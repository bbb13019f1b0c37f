"""Guard of an environment: a benchmark's exceptions become faults of the world, contract violations end the command.

A benchmark may be a user's code. An exception in `make`, `reset`, `step`, `snapshot` or `restore` ends the episode as
not measured (`Info.env_fault`), with the exception as the reason, and all other episodes continue. An answer of the
wrong type (a tuple of four, a dict as an observation, Gymnasium's info dict) is wrong in every episode, so it ends the
command with one sentence that names `r2v check-env`.
"""

from __future__ import annotations

import logging
import math
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from r2v.envs.base import Benchmark, Closable, Environment, Info, Sited, Snapshots, Task
from r2v.errors import EnvironmentFault, Interrupted, R2VError, UsageError, failure_of
from r2v.llm.types import Request
from r2v.wire.message import ToolSpec, sendable

log = logging.getLogger("r2v")

R = TypeVar("R")
StepResult = tuple[str, float, bool, bool, Info]

_OF_MACHINES = ("cuda_oom", "host_oom")
"""Failures of the machine, not of the world: they end the stage, which is restarted as a whole."""
_SHOWN = 300
_STDLIB = sysconfig.get_paths()["stdlib"]


class ContractError(UsageError):
    """A benchmark's answer violates its protocol."""

    def __init__(self, benchmark: object, problem: str) -> None:
        spec = f"{type(benchmark).__module__}:{type(benchmark).__qualname__}"  # as a configuration names it
        super().__init__(f"{spec}: {problem}; `r2v check-env {spec}` tells all that is wrong with a benchmark")


class WorldFault(Exception):
    """An exception of the benchmark's own code, the reason of an `env_fault`."""


class GuardedEnv:
    """A benchmark's `Environment` whose exceptions become faults and whose answers have the right types.

    The first call that needs a world makes it, so that a failing `make` costs one episode.
    """

    def __init__(self, benchmark: Benchmark, site: str | None = None) -> None:
        self._benchmark, self._site = benchmark, site
        self._world: Environment | None = None
        self._closed = False

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Return the world's first observation, or an empty one and a fault. Raises ContractError."""
        try:
            answer = self._call("reset", lambda: self._open_world().reset(seed=seed, task=task))
        except WorldFault as fault:
            return "", Info(env_fault=str(fault))
        self._require(reset_problem(answer))
        observation, info = answer
        return sendable(observation), info

    def step(self, action: str) -> StepResult:
        """Return the world's answer to the action, or a fault that ends the episode. Raises ContractError."""
        try:
            answer = self._call("step", lambda: self._open_world().step(action))
        except WorldFault as fault:
            return "", 0.0, False, True, Info(env_fault=str(fault))
        self._require(step_problem(answer))
        observation, reward, terminated, truncated, info = answer
        return sendable(observation), reward, terminated, truncated, info

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return the world's tools. Raises ContractError if the world fails or returns none."""
        try:
            return require_tools(self._call("tool_specs", lambda: self._open_world().tool_specs()), self._benchmark)
        except WorldFault as fault:
            raise ContractError(self._benchmark, str(fault)) from fault

    def snapshot(self) -> Any:
        """Return the world's state. Raises WorldFault if the world fails, ContractError if it has no snapshots."""
        world = self._snapshots()
        return self._call("snapshot", world.snapshot)

    def restore(self, state: Any) -> None:
        """Return to a state. Raises as `snapshot` does."""
        world = self._snapshots()
        self._call("restore", lambda: world.restore(state))

    def close(self) -> None:
        """Close the world, if one was made and is `Closable`. Its exception is logged and ignored, since the episode is
        over. May be called again."""
        world, self._world, self._closed = self._world, None, True
        if isinstance(world, Closable):
            with suppress(WorldFault):
                self._call("close", world.close)

    def _snapshots(self) -> Snapshots:
        world = self._open_world()
        if not isinstance(world, Snapshots):
            problem = "capabilities say snapshot=True, and its environment has no snapshot and restore"
            raise ContractError(self._benchmark, problem)
        return world

    def _require(self, problem: str | None) -> None:
        if problem:
            raise ContractError(self._benchmark, problem)

    def _open_world(self) -> Environment:
        if self._closed:
            raise R2VError("a world was used after it was closed")
        if self._world is None:
            world = self._call("make", self._make)
            lacks = [name for name in ("reset", "step", "tool_specs") if not callable(getattr(world, name, None))]
            self._require(f"make() gives a {type(world).__name__} without {', '.join(lacks)}" if lacks else None)
            self._world = world
        return self._world

    def _make(self) -> Environment:
        if self._site is None:
            return self._benchmark.make()
        assert isinstance(self._benchmark, Sited)  # r2v.rollout.sites passes sites to these only
        return self._benchmark.make_at(self._site)

    def _call(self, method: str, call: Callable[[], R]) -> R:
        """Return the call's result. Raises WorldFault for the benchmark's exceptions; failures of the machine,
        R2V's errors and interruptions pass through."""
        try:
            return call()
        except WorldFault:
            raise
        except Exception as error:
            if failure_of(error)[0] in _OF_MACHINES or _is_ours(error):
                raise
            fault = WorldFault(f"{method} raised {described(error)}")
            _log_once(self._benchmark.name, str(fault))
            raise fault from error


def guarded_expert(benchmark: Any) -> Callable[[Request], str]:
    """Return the benchmark's expert with its exceptions and non-text answers turned into ContractError."""

    def answer(request: Request) -> str:
        try:
            text = benchmark.expert(request)
        except Exception as error:
            if failure_of(error)[0] in _OF_MACHINES or isinstance(error, R2VError):
                raise
            raise ContractError(benchmark, f"expert raised {described(error)}") from error
        if not isinstance(text, str):
            raise ContractError(benchmark, f"expert gives {shape(text)}; expected the action's text")
        return text

    return answer


def _is_ours(error: Exception) -> bool:
    """True for an error of R2V that must end the command. EnvironmentFault is excluded: worlds raise it when broken."""
    return isinstance(error, (R2VError, Interrupted)) and not isinstance(error, EnvironmentFault)


def described(error: BaseException) -> str:
    """Return an exception as one line, with the innermost line of the benchmark's own code if it has one.

    >>> described(KeyError("cart"))
    "KeyError: 'cart'"
    """
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if not _is_library(file)]
    return f"{text} ({own[-1][0].name}:{own[-1][1]})" if own else text


def _is_library(file: Path) -> bool:
    """True for a frame of this module, of Python itself or of an installed package."""
    return file == Path(__file__) or "site-packages" in file.parts or file.is_relative_to(_STDLIB)


@cache  # thousands of episodes may have the same fault
def _log_once(benchmark: str, fault: str) -> None:
    log.warning("  environment fault, episodes not measured: benchmark=%s error=%s", benchmark, fault)


def require_tools(answer: Any, benchmark: object) -> tuple[ToolSpec, ...]:
    """Return the answer as a tuple. Raises ContractError unless `tool_specs` gave ToolSpecs."""
    if problem := tools_problem(answer):
        raise ContractError(benchmark, problem)
    return tuple(answer)


def reset_problem(answer: Any) -> str | None:
    """Return the contract violation in an answer of `reset`, None without one."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return f"reset gives {shape(answer)}; expected (observation, Info)"
    return _part_problem("reset", *answer)


def step_problem(answer: Any) -> str | None:
    """Return the contract violation in an answer of `step`, None without one."""
    if not isinstance(answer, tuple) or len(answer) != 5:
        return f"step gives {shape(answer)}; expected (observation, reward, terminated, truncated, Info)"
    observation, reward, terminated, truncated, info = answer
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        return f"step gives the reward {reward!r:.40}; expected a finite number"
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if type(value) is not bool:
            return f"step gives {name}={value!r:.40}; expected True or False"
    return _part_problem("step", observation, info)


def _part_problem(method: str, observation: Any, info: Any) -> str | None:
    if not isinstance(observation, str):
        return f"{method} gives an observation that is a {type(observation).__name__}; expected text (str)"
    if not isinstance(info, Info):
        hint = ", as Gymnasium's do" if isinstance(info, dict) else ""
        return f"{method} gives an info that is a {type(info).__name__}{hint}; expected r2v.envs.base.Info"
    if info.success is not None and type(info.success) is not bool:
        return f"{method} gives Info.success={info.success!r:.40}; expected True, False or None"
    if info.env_fault is not None and not isinstance(info.env_fault, str):
        return f"{method} gives Info.env_fault={info.env_fault!r:.40}; expected a reason (str) or None"
    if isinstance(info.partial_score, bool) or not isinstance(info.partial_score, (int, float)):
        return f"{method} gives Info.partial_score={info.partial_score!r:.40}; expected a number"
    return None


def tools_problem(answer: Any) -> str | None:
    """Return the contract violation in an answer of `tool_specs`, None without one."""
    if not isinstance(answer, (tuple, list)):
        return f"tool_specs gives {shape(answer)}; expected a tuple of r2v.wire.message.ToolSpec"
    for tool in answer:
        if not isinstance(tool, ToolSpec):
            return f"tool_specs holds a {type(tool).__name__}; expected r2v.wire.message.ToolSpec"
        if not isinstance(tool.parameters, dict):
            return f"tool {tool.name}: parameters are a {type(tool.parameters).__name__}; expected a JSON schema (dict)"
    return None


def shape(answer: Any) -> str:
    """Return a value's type in words, with the length of a tuple or a list."""
    if isinstance(answer, (tuple, list)):
        return f"a {type(answer).__name__} of {len(answer)}"
    return "None" if answer is None else f"a {type(answer).__name__}"
