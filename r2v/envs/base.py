"""The benchmark and environment protocols: Gymnasium semantics, text first, with declared capabilities.

A new benchmark is one file that offers a `Benchmark`: its tasks, a way to make an `Environment`, and what
that environment can do. Nothing else in R2V knows which benchmark it is working on.

An agent's mistakes and a world's faults are kept apart: `Info.env_fault` (browser died, site answered 500,
image missing) ends the episode as not measured, never as failed.
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
    """One thing to be done. `payload` is what the environment needs to set it up; no actor sees it."""

    task_id: str
    goal: str
    template_id: str | None = None
    split: str | None = None
    """train, calibration, evaluation or heldout where the benchmark fixes it; None: r2v.data.split decides."""
    payload: dict[str, Any] = field(default_factory=dict)
    mutates: bool = False
    """It changes a world that others share (`Capabilities.parallel=False`): it is played alone on its site set, and
    never branched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What stages may ask of an environment. `auto` label sources pick the best that these allow."""

    deterministic: bool = True
    snapshot: bool = False
    expert: bool = False
    parallel: bool = True
    """Worlds share nothing. False: all worlds of a site set share its state, so they are played as `r2v.rollout.sites`
    says."""
    per_site: int = 1
    """Episodes that only read which a site set carries side by side, where worlds share it."""
    needs_network: bool = False
    waits: bool = False
    """Its worlds wait for a browser, a container or a site more than they compute: each gets a thread of its own."""
    idempotent_errors: bool = True
    """A call that failed with a tool error has left the state unchanged, so a retry may be inserted."""
    untrusted: str = ""
    """A regular expression of the mark that lines of a page bear where outsiders wrote them: what agents may see, the
    router may read. Empty: lines bear none, and are told by their words alone."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.untrusted)
        except re.error as error:
            raise ValueError(f"Capabilities.untrusted={self.untrusted!r}: not a regular expression ({error})") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Info:
    """What the environment says beside the observation. Actors never see it.

    `success` is None until the episode ends. `harmful` is True on the step whose action carried out something
    that was planted for the agent (an injected instruction).
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


class Environment(Protocol):
    """One world, one task at a time. `reset` may be called again; actions and observations are text."""

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """Set the task up and return the first observation."""
        ...

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Act: (observation, reward, terminated, truncated, info)."""
        ...

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools an agent may call here."""
        ...


@runtime_checkable
class Snapshots(Protocol):
    """An environment (or a wrapper around one) whose state can be taken and put back."""

    def snapshot(self) -> Any:
        """The complete state, as an immutable value."""
        ...

    def restore(self, state: Any) -> None:
        """Go back to a state that `snapshot` gave."""
        ...


@runtime_checkable
class Closable(Protocol):
    """An environment that holds something to be given back: a browser, a container, a child process, a folder."""

    def close(self) -> None:
        """Give it back. It is called once, wherever an episode or a branch ends, also by an exception; the environment
        is not used again."""
        ...


@runtime_checkable
class Surface(Protocol):
    """What a benchmark lends the perturbations so that their plants look native. Without it, generic text
    banks are used. `u` is a keyed uniform in [0, 1): the only randomness allowed here."""

    def decoys(self, observation: str, goal: str, count: int, u: float) -> list[str]:
        """`count` look-alike lines with fresh identifiers, none of which satisfies the goal."""
        ...

    def injection(self, observation: str, goal: str, family: str, u: float) -> tuple[str, str]:
        """(line to plant, canary): an attacker's instruction of this family and the string whose appearance
        in an executed action shows that it was obeyed."""
        ...


@runtime_checkable
class Demonstrated(Protocol):
    """A benchmark that brings a scripted stand-in teacher along."""

    def expert(self, request: Request) -> str:
        """The action text. It sees what a model sees, the request's messages and key, and nothing else."""
        ...


@runtime_checkable
class Audited(Protocol):
    """A benchmark that lends `r2v check-env` players whose outcome is certain, by which its grader is checked."""

    def players(self) -> Mapping[str, Callable[[Request], str]]:
        """Actors by name, each of them optional: "empty" ends a task without doing anything for it, "wrong" does
        something else and ends it, "gold" solves every task. The others are derived from tools and expert."""
        ...


@runtime_checkable
class BeginsSolved(Protocol):
    """A benchmark some of whose tasks are solved by doing nothing."""

    def begins_solved(self, task: Task, observation: str) -> bool:
        """True if the task, whose first observation this is, begins in the state that it asks for."""
        ...


@runtime_checkable
class Benchmark(Protocol):
    """A set of tasks and the world they are done in."""

    name: str
    version: str
    capabilities: Capabilities

    def tasks(self) -> Sequence[Task]:
        """Every task, in a fixed order, with unique ids and unique goals per split."""
        ...

    def make(self) -> Environment:
        """A fresh world."""
        ...


@runtime_checkable
class Sited(Protocol):
    """A benchmark whose worlds live on sites that are named by the configuration (`rollout.sites`)."""

    def make_at(self, site: str) -> Environment:
        """A fresh world on this site set."""
        ...


@runtime_checkable
class Judged(Protocol):
    """A benchmark some of whose outcomes a model decides."""

    def judge_by_record(self) -> str | None:
        """Ask nobody from here on: a model's replies are those that this project has journaled, and a step that needs
        another one raises `Unjudged`. Who judged, or None where no task needs it."""
        ...


class Unjudged(InputError):
    """An outcome that a model decided whose reply this project has not."""


@runtime_checkable
class Equipped(Protocol):
    """A benchmark whose worlds need something of the machine: a browser, a sandbox."""

    def require_here(self) -> None:
        """Raises UsageError or EnvironmentFault, with the remedy, where this machine lacks it. Asked before a stage
        that plays begins anything."""
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
"""Names a configuration may use. Anything else is a dotted path `package.module:Class`."""

WORLDLESS = {"logs": "r2v.envs.logs:Logs"}
"""A name for what belongs to no world: imported trajectories, which nothing is played of."""


def benchmark_class(spec: str) -> type[Any]:
    """The class of the benchmark that `spec` names; nothing is made of it yet.

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
    """What to do for more tasks: what the benchmark says itself (its attribute `more_tasks`), else where to look."""
    return str(getattr(benchmark, "more_tasks", "set env.options for more tasks, or name another benchmark"))


def require_playable(spec: str, options: dict[str, Any] | None = None) -> None:
    """Raises UsageError as `benchmark_class` does, and where the benchmark says itself, by a method
    `require_set_up(**options)`, that it cannot be played from here: something is not installed, or no site is named.
    One of somebody's own says nothing to a command that only reads, for that does not import it."""
    if is_dotted(spec) and not may_import():
        return
    if (says := getattr(benchmark_class(spec), "require_set_up", None)) is not None:
        says(**(options or {}))


def tools_of(benchmark: Benchmark) -> tuple[ToolSpec, ...]:
    """The tools that an agent may call in a benchmark's worlds, as a fresh one says; UsageError where it fails. One
    without tasks (`logs`) has no world, and no tools."""
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
            f"env.benchmark={benchmark.name}: a fresh world does not say its tools ({reason}); mend tool_specs, or set "
            "policy.tools=none"
        ) from error


def load_benchmark(spec: str, options: dict[str, Any] | None = None) -> Benchmark:
    """The benchmark that `spec` names, built with `options`. Raises UsageError as `benchmark_class` does, and
    for options that it does not take."""
    made_by = benchmark_class(spec)
    try:
        benchmark = made_by(**(options or {}))
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise UsageError(f"env.options for {spec}: {' '.join(str(error).split())}") from error
    if problem := declaration_problem(benchmark):
        raise UsageError(f"env.benchmark={spec}: {problem}; `r2v check-env {spec}` tells all that is wrong with it")
    made: Benchmark = benchmark
    return made


def declaration_problem(benchmark: Any) -> str | None:
    """What is wrong with what a benchmark declares of itself; None where nothing is."""
    for name, kind in (("name", str), ("version", str), ("capabilities", Capabilities)):
        if not hasattr(benchmark, name):
            return f"is no Benchmark: it lacks {name}"
        if not isinstance(value := getattr(benchmark, name), kind):
            return f"{name} is {value!r:.40}, where a {kind.__name__} is asked for"
    if not any(letter.isascii() and letter.isalnum() for letter in benchmark.name):
        return f"name is {benchmark.name!r:.40}, where at least one letter or digit is asked for"
    return _tasks_problem(benchmark)


def _tasks_problem(benchmark: Any) -> str | None:
    try:
        listed = benchmark.tasks()
        other = next((task for task in listed if not isinstance(task, Task)), None)
    except R2VError:
        raise
    except Exception as error:  # somebody else's code
        return f"tasks() raised {' '.join(f'{type(error).__name__}: {error}'.split())}"
    return None if other is None else f"tasks() holds a {type(other).__name__}, where r2v.envs.base.Task is asked for"
