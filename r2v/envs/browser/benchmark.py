"""Benchmark of any BrowserGym tasks.

    env: {benchmark: browser, options: {ids: browsergym/miniwob.click-test, instances: 10}}

A task is an id and the number of an instance; the page is drawn from both and the episode's seed. The world runs in a
worker and has no snapshot: a branch replays the actions from the reset.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from r2v.constraints import Range, require
from r2v.envs.base import Capabilities, Task
from r2v.envs.browser import surface
from r2v.envs.browser.chromium import chromium_flags, find_chromium, require_extra
from r2v.envs.browser.tools import ANSWERING, ON_PAGE, ON_THE_WEB, POINTING
from r2v.envs.pace import Pace
from r2v.envs.worker.environment import WorkerEnvironment, WorldLimits
from r2v.envs.worker.pool import WorkerPool
from r2v.envs.worker.process import WorldProcess
from r2v.errors import UsageError
from r2v.wire.message import ToolSpec

PREFIX = "browsergym/"


class BrowserBenchmark:
    """BrowserGym tasks named by `ids`, separated by spaces, with `instances` of each."""

    name = "browser"
    version = "2"
    more_tasks = "raise env.options.instances, or name more in env.options.ids"
    capabilities = Capabilities(waits=True)
    pace = Pace(reset_seconds=1.0, step_seconds=0.4, cpu_share=0.5, prompt_tokens=900, page_tokens=1000)
    decoys, injection = staticmethod(surface.decoys), staticmethod(surface.injection)

    def __init__(
        self,
        *,
        ids: str = "",
        instances: int = 10,
        slow_mo: int | None = None,
        coordinates: bool = False,
        longest: int = 20_000,
        reset_seconds: float = 120.0,
        step_seconds: float = 60.0,
        episode_seconds: float = 1800.0,
    ) -> None:
        require("env.options.instances", Range(at_least=1, at_most=1_000_000), instances)
        require("env.options.longest", Range(at_least=200, at_most=10_000_000), longest)
        self._ids = listed_in("ids", ids)
        for id_ in self._ids:
            if not id_.startswith(PREFIX) or len(id_) == len(PREFIX):
                raise UsageError(
                    f"env.options.ids: {id_!r:.60} is no id of BrowserGym; name them as browsergym/miniwob.click-test"
                )
        require_extra("miniwob", "browsergym.core")
        packages = list(dict.fromkeys(map(package_of, self._ids)))
        for package in packages:
            try:
                require_extra("miniwob", package)
            except UsageError as error:
                line = f"pip install {package.replace('.', '-')}==0.14.3"
                raise UsageError(f"env.options.ids: their package {package} is not installed; {line}") from error
        self._instances = instances
        self._options = {"packages": packages, "sites": [], "longest": longest, "slow_mo": slow_mo}
        self._options |= {"coordinates": coordinates, "show_pages": True}
        self._limits = WorldLimits(
            reset_seconds=reset_seconds, step_seconds=step_seconds, episode_seconds=episode_seconds
        )
        self._tools = (*ON_PAGE, *(POINTING if coordinates else ()), *ON_THE_WEB, *ANSWERING)

    def tasks(self) -> Sequence[Task]:
        """Return every instance of every id."""
        return [instance(id_, number) for id_ in self._ids for number in range(self._instances)]

    def require_here(self) -> None:
        """Raise UsageError without a browser."""
        find_chromium()

    @cached_property
    def pool(self) -> WorkerPool:
        """Return the pool of workers. Raises UsageError without a browser, but a machine without one can plan."""
        return browser_pool(self._options, self._tools, variables=miniwob_url())

    def make(self) -> WorkerEnvironment:
        """Return a fresh world in a worker. Raises as `pool` does."""
        return WorkerEnvironment(self.pool, limits=self._limits, tools=self._tools)


def browser_pool(
    options: Mapping[str, Any],
    tools: Sequence[ToolSpec],
    *,
    variables: Mapping[str, str],
    world: str = "r2v.envs.browser.world:BrowserWorld",
    python: Path | None = None,
) -> WorkerPool:
    """Return a pool of workers whose worlds use this machine's browser. Raises UsageError without one."""
    started = {"tools": [tool.name for tool in tools], "browser": str(find_chromium()), "flags": chromium_flags()}
    return WorkerPool(WorldProcess(world=world, options={**options, **started}, python=python, environment=variables))


def instance(id_: str, number: int) -> Task:
    """Return the task of an id's instance. Only the page shows the assignment, so the goal points to it."""
    short = id_.removeprefix(PREFIX)
    goal = f'Task "{short}", instance {number}. Do what the page says after "goal:".'
    return Task(task_id=f"{short}.{number}", goal=goal, template_id=short, payload={"id": id_, "instance": number})


def listed_in(option: str, text: object) -> list[str]:
    """Return the names in an option, separated by spaces or commas. Raises UsageError for none or a repeated name."""
    names = text.replace(",", " ").split() if isinstance(text, str) else []
    if not names or len(set(names)) < len(names):
        raise UsageError(
            f"env.options.{option}: got {text!r:.60}; expected a text with at least one name, each of them once"
        )
    return names


def package_of(id_: str) -> str:
    """Return the package that registers an id: browsergym.miniwob for `browsergym/miniwob.click-test`."""
    family = id_.removeprefix(PREFIX).partition(".")[0]
    return "browsergym.core" if family == "openended" else f"browsergym.{family}"


def miniwob_url() -> dict[str, str]:
    """Return the address of MiniWoB's pages as {"MINIWOB_URL": url}: the variable's value, else the files of the
    package miniwob; empty if it is not installed."""
    if url := os.environ.get("MINIWOB_URL"):
        return {"MINIWOB_URL": url}
    package = find_spec("miniwob")
    if package is None or not package.submodule_search_locations:
        return {}
    folder = Path(next(iter(package.submodule_search_locations))) / "html" / "miniwob"
    return {"MINIWOB_URL": folder.as_uri() + "/"}
