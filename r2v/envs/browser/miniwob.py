"""MiniWoB++ in a real Chromium: the 125 tasks of browsergym-miniwob, on any machine, without a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from r2v.constraints import Range, require
from r2v.envs.base import Capabilities, Task
from r2v.envs.browser import surface
from r2v.envs.browser.benchmark import PREFIX, browser_pool, instance, listed_in, miniwob_url
from r2v.envs.browser.chromium import find_chromium, require_extra
from r2v.envs.browser.experts import EXPERTS, begins_solved, hand_in, next_call
from r2v.envs.browser.miniwob_tasks import MINIWOB_TASKS
from r2v.envs.browser.tools import ON_PAGE, POINTING
from r2v.envs.pace import Pace
from r2v.envs.worker.environment import WorkerEnvironment, WorldLimits
from r2v.envs.worker.pool import WorkerPool
from r2v.errors import UsageError, nearest
from r2v.llm.types import Request


class MiniWoB:
    """MiniWoB++ tasks in `names`, separated by spaces (scripted: those with an expert; all: every one), with
    `instances` of each.

    A page is drawn from the instance and the episode's seed. Many tasks have the same goal on every page, so splits
    separate instances, not goals.
    """

    name = "miniwob"
    version = "2"
    more_tasks = "raise env.options.instances, or name more in env.options.names"
    capabilities = Capabilities(waits=True, expert=True)
    pace = Pace(
        reset_seconds=0.6,
        step_seconds=0.4,
        cpu_share=0.5,
        teacher_steps=2.4,
        differing=0.6,
        branched=2.5,
        prompt_tokens=900,
        page_tokens=200,
        action_tokens=20,
    )
    expert = staticmethod(next_call)
    decoys, injection = staticmethod(surface.decoys), staticmethod(surface.injection)

    def __init__(
        self,
        *,
        names: str = "scripted",
        instances: int = 10,
        coordinates: bool = False,
        longest: int = 6000,
        reset_seconds: float = 60.0,
        step_seconds: float = 30.0,
        episode_seconds: float = 300.0,
    ) -> None:
        require("env.options.instances", Range(at_least=1, at_most=1_000_000), instances)
        require("env.options.longest", Range(at_least=200, at_most=10_000_000), longest)
        self._names = _named(names)
        self._instances = instances
        require_extra("miniwob", "browsergym.miniwob")
        self._url = miniwob_url()
        if not self._url:
            require_extra("miniwob", "miniwob")
        self._options = {
            "packages": ["browsergym.miniwob"],
            "sites": [self._url["MINIWOB_URL"]],
            "longest": longest,
            "slow_mo": 0,
            "page_seconds": 30,
            "coordinates": coordinates,
        }
        self._limits = WorldLimits(
            reset_seconds=reset_seconds, step_seconds=step_seconds, episode_seconds=episode_seconds
        )
        self._tools = (*ON_PAGE, *(POINTING if coordinates else ()))

    def tasks(self) -> Sequence[Task]:
        """Return every instance of every named task, instance by instance, so that a prefix has all kinds."""
        return [
            instance(f"{PREFIX}miniwob.{name}", number) for number in range(self._instances) for name in self._names
        ]

    def require_here(self) -> None:
        """Raise UsageError without a browser."""
        find_chromium()

    @cached_property
    def pool(self) -> WorkerPool:
        """Return the pool of workers. Raises UsageError without a browser, but a machine without one can plan."""
        return browser_pool(self._options, self._tools, variables=self._url)

    def make(self) -> WorkerEnvironment:
        """Return a fresh world in a worker. Raises as `pool` does."""
        return WorkerEnvironment(self.pool, limits=self._limits, tools=self._tools)

    def players(self) -> Mapping[str, Callable[[Request], str]]:
        """Return the player of `r2v check-env` that submits each page unchanged, which must not succeed."""
        return {"empty": hand_in}

    def begins_solved(self, task: Task, observation: str) -> bool:
        """True if a page may be solved in its initial state; see `r2v.envs.browser.experts`."""
        return begins_solved(str(task.template_id).removeprefix("miniwob."), observation)


def _named(names: str) -> list[str]:
    """Return the configured task names. Raises UsageError with the nearest name for an unknown one."""
    groups = {"scripted": sorted(EXPERTS), "all": list(MINIWOB_TASKS)}
    if isinstance(names, str) and names in groups:
        return groups[names]
    listed = listed_in("names", names)
    for name in listed:
        if name not in MINIWOB_TASKS:
            raise UsageError(f"env.options.names: no task {name}; {nearest(name, [*groups, *MINIWOB_TASKS])}")
    return listed
