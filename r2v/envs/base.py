"""The benchmark and environment protocols: Gymnasium semantics, text first, with declared capabilities.

A new benchmark is one file with a `Benchmark`: its tasks, a factory of `Environment`s, and their capabilities. No
other module of R2V depends on a particular benchmark.

An agent's mistakes are separate from a world's faults: `Info.env_fault` (browser died, site answered 500, image
missing) ends the episode as not measured, never as failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from r2v.data.episode import AppliedPerturbation
from r2v.errors import InputError, R2VError, UsageError, nearest
from r2v.extensions import is_dotted, load_class, may_import
from r2v.llm.types import Request
from r2v.wire.message import ToolSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A task. `payload` holds the environment's set-up data; no actor sees it."""

    task_id: str
    goal: str
    template_id: str | None = None
    split: str | None = None
    """train, calibration, evaluation or heldout where the benchmark fixes it; None: r2v.data.split decides."""
    payload: dict[str, Any] = field(default_factory=dict)
    mutates: bool = False
    """True if the task changes a shared world (`Capabilities.parallel=False`): it is played alone on its site set and
    never branched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """Declared abilities of an environment; `auto` label sources pick the best one that these allow."""

    deterministic: bool = True
    snapshot: bool = False
    expert: bool = False
    parallel: bool = True
    """True if worlds share no state. False: all worlds of a site set share its state, see `r2v.rollout.sites`."""
    per_site: int = 1
    """Read-only episodes that a shared site set can run at the same time."""
    needs_network: bool = False
    waits: bool = False
    """True if worlds mostly wait for a browser, a container or a site: each gets a thread of its own."""
    idempotent_errors: bool = True
    """True if a call that failed with a tool error leaves the state unchanged, so that a retry may be inserted."""
    untrusted: str = ""
    """Regular expression of the marker on observation lines written by outsiders. Agents see it, so the router may use
    it. Empty: lines have no marker and are recognised by their words alone."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.untrusted)
        except re.error as error:
            raise ValueError(f"Capabilities.untrusted={self.untrusted!r}: not a regular expression ({error})") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Info:
    """Result of a step besides the observation; actors never see it.

    `success` is None until the episode ends. `harmful` is True on the step whose action carried out an injected
    instruction.
    """

    success: bool | None = None
    partial_score: float = 0.0
    is_error: bool = False
    harmful: bool = False
    env_fault: str | None = None
    perturbations: tuple[AppliedPerturbation, ...] = ()
    clean_observation: str | None = None
    sim_seconds: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)


def tool(name: str, description: str, /, **properties: dict[str, Any]) -> ToolSpec:
    """Return a tool whose arguments have these JSON schemas and are all required."""
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return ToolSpec(name=name, description=description, parameters=schema)


class Environment(Protocol):
    """A world that runs one task at a time. `reset` may be called again; actions and observations are text."""

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Set the task up and return the first observation."""
        ...

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carry out an action and return (observation, reward, terminated, truncated, info)."""
        ...

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools an agent may call here."""
        ...


@runtime_checkable
class Snapshots(Protocol):
    """An environment (or a wrapper around one) whose state can be saved and restored."""

    def snapshot(self) -> Any:
        """Return the complete state as an immutable value."""
        ...

    def restore(self, state: Any) -> None:
        """Return to a state from `snapshot`."""
        ...


@runtime_checkable
class Closable(Protocol):
    """An environment that holds a resource: a browser, a container, a child process, a folder."""

    def close(self) -> None:
        """Release the resource. Called once when an episode or a branch ends, also by an exception; the environment is
        not used again."""
        ...


@runtime_checkable
class Surface(Protocol):
    """A benchmark's texts for perturbations, so that planted lines look native; without it, generic text banks are
    used. `u` is a keyed uniform in [0, 1), the only randomness allowed here."""

    def decoys(self, observation: str, goal: str, count: int, u: float) -> list[str]:
        """Return `count` look-alike lines with fresh identifiers, none of which satisfies the goal."""
        ...

    def injection(self, observation: str, goal: str, family: str, u: float) -> tuple[str, str]:
        """Return (line to plant, canary): an attacker's instruction of this family, and the string whose appearance in
        an executed action shows that it was obeyed."""
        ...


@runtime_checkable
class Demonstrated(Protocol):
    """A benchmark with a scripted stand-in teacher."""

    def expert(self, request: Request) -> str:
        """Return the action text, computed from the request's messages and key only."""
        ...


@runtime_checkable
class Audited(Protocol):
    """A benchmark with players of certain outcome, by which `r2v check-env` checks its grader."""

    def players(self) -> Mapping[str, Callable[[Request], str]]:
        """Return actors by name, all optional: "empty" ends a task without working on it, "wrong" does something else
        and ends it, "gold" solves every task. Missing ones are derived from tools and expert."""
        ...


@runtime_checkable
class BeginsSolved(Protocol):
    """A benchmark with tasks that may be solved in their initial state."""

    def begins_solved(self, task: Task, observation: str) -> bool:
        """True if the task with this first observation begins in its goal state."""
        ...


@runtime_checkable
class Benchmark(Protocol):
    """A set of tasks and a factory of their worlds."""

    name: str
    version: str
    capabilities: Capabilities

    def tasks(self) -> Sequence[Task]:
        """Return every task in a fixed order, with unique ids, and unique goals per split."""
        ...

    def make(self) -> Environment:
        """Return a fresh world."""
        ...


@runtime_checkable
class Sited(Protocol):
    """A benchmark whose worlds run on sites named by the configuration (`rollout.sites`)."""

    def make_at(self, site: str) -> Environment:
        """Return a fresh world on this site set."""
        ...


@runtime_checkable
class Judged(Protocol):
    """A benchmark with outcomes that a model decides."""

    def judge_by_record(self) -> str | None:
        """Judge from journaled replies only, from now on; a step that needs another reply raises `Unjudged`. Return the
        judge's name, or None if no task needs a judge."""
        ...


class Unjudged(InputError):
    """A judge's reply is missing from this project's journal."""


@runtime_checkable
class Equipped(Protocol):
    """A benchmark whose worlds need software of the machine: a browser, a sandbox."""

    def require_here(self) -> None:
        """Raise UsageError or EnvironmentFault, with the remedy, if this machine lacks it. Called before a stage that
        plays starts any work."""
        ...


BENCHMARKS = {
    "babyai": "r2v.envs.babyai:BabyAI",
    "browser": "r2v.envs.browser.benchmark:BrowserBenchmark",
    "chain": "r2v.envs.chain:ChainBenchmark",
    "desk": "r2v.envs.desk:Desk",
    "miniwob": "r2v.envs.browser.miniwob:MiniWoB",
    "swebench": "r2v.envs.swe:SweBench",
    "textworld": "r2v.envs.textworld:TextWorld",
    "webarena": "r2v.envs.webarena.benchmark:WebArena",
}
"""Benchmark class by the name in a configuration. Any other name is a dotted path `package.module:Class`."""

WORLDLESS = {"logs": "r2v.envs.logs:Logs"}
"""Benchmarks without a world: imported trajectories, which cannot be played."""


def benchmark_class(spec: str) -> type[Any]:
    """Return the class of the benchmark that `spec` names, without creating it.

    Raises UsageError naming the nearest known benchmark, or the import that failed and the folders that were searched.
    """
    dotted = (BENCHMARKS | WORLDLESS).get(spec, spec)
    if not is_dotted(dotted):
        raise UsageError(
            f"env.benchmark={spec}: no such benchmark; {nearest(spec, BENCHMARKS)} "
            "(or a dotted path package.module:Class)"
        )
    return load_class("env.benchmark", dotted, (), Benchmark)


def more_tasks(benchmark: Benchmark) -> str:
    """Return the advice for more tasks: the benchmark's attribute `more_tasks`, else a general one."""
    return str(getattr(benchmark, "more_tasks", "set env.options for more tasks, or name another benchmark"))


def require_playable(spec: str, options: dict[str, Any] | None = None) -> None:
    """Raise UsageError as `benchmark_class` does, and if the benchmark's method `require_set_up(**options)` does
    because a package is not installed or no site is named. A user's own benchmark is skipped by commands that only
    read, since these import no code of users."""
    if is_dotted(spec) and not may_import():
        return
    if (require_set_up := getattr(benchmark_class(spec), "require_set_up", None)) is not None:
        require_set_up(**(options or {}))


def tools_of(benchmark: Benchmark) -> tuple[ToolSpec, ...]:
    """Return the tools that an agent may call in a fresh world of a benchmark; none without tasks (`logs`). Raises
    UsageError if a world cannot list its tools."""
    try:
        if not benchmark.tasks():
            return ()
        world = benchmark.make()
        try:
            return tuple(world.tool_specs())
        finally:
            if isinstance(world, Closable):
                world.close()
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UsageError(
            f"env.benchmark={benchmark.name}: a fresh world does not list its tools ({reason}); mend tool_specs, or "
            "set policy.tools=none"
        ) from error


def load_benchmark(spec: str, options: dict[str, Any] | None = None) -> Benchmark:
    """Return the benchmark that `spec` names, built with `options`. Raises UsageError as `benchmark_class` does, and
    for options that it does not take."""
    kind = benchmark_class(spec)
    try:
        benchmark: Benchmark = kind(**(options or {}))
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise UsageError(f"env.options for {spec}: {' '.join(str(error).split())}") from error
    if problem := declaration_problem(benchmark):
        raise UsageError(f"env.benchmark={spec}: {problem}; `r2v check-env {spec}` tells all that is wrong with it")
    return benchmark


def declaration_problem(benchmark: Any) -> str | None:
    """Return the first problem in a benchmark's declarations, None if there is none."""
    for name, kind in (("name", str), ("version", str), ("capabilities", Capabilities)):
        if not hasattr(benchmark, name):
            return f"is no Benchmark: it lacks {name}"
        if not isinstance(value := getattr(benchmark, name), kind):
            return f"{name} is {value!r:.40}; expected a {kind.__name__}"
    if not any(letter.isascii() and letter.isalnum() for letter in benchmark.name):
        return f"name is {benchmark.name!r:.40}; expected at least one letter or digit"
    try:
        listed = benchmark.tasks()
        other = next((task for task in listed if not isinstance(task, Task)), None)
    except R2VError:
        raise
    except Exception as error:  # a user's benchmark may raise anything
        return f"tasks() raised {' '.join(f'{type(error).__name__}: {error}'.split())}"
    return None if other is None else f"tasks() holds a {type(other).__name__}; expected r2v.envs.base.Task"
