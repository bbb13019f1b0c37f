"""WebArena's `Benchmark`: the official tasks, worlds in a child interpreter, and sites shared by episodes.

    WA_SHOPPING=http://host:7770 ... r2v run --config configs/webarena/noisy.yaml

Tasks that change a site are played alone on a site set and never branched (`Task.mutates`); up to `per_site` read-only
tasks run at the same time. Several sets (`rollout.sites`) are used in parallel.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from r2v.constraints import Range, require
from r2v.envs.base import Capabilities, Task
from r2v.envs.browser import surface
from r2v.envs.browser.benchmark import browser_pool
from r2v.envs.browser.chromium import find_chromium
from r2v.envs.browser.tools import ANSWERING, ON_PAGE, ON_THE_WEB
from r2v.envs.pace import PACES
from r2v.envs.webarena.addresses import TASK_SITES, SiteSet, site_names, site_set
from r2v.envs.webarena.environment import SiteState, WebArenaEnvironment
from r2v.envs.webarena.home import child_python, is_installed, require_installed, webarena_home
from r2v.envs.webarena.judging import AnswerJudge
from r2v.envs.webarena.tasks import chosen_tasks
from r2v.envs.worker.environment import WorldLimits
from r2v.envs.worker.pool import WorkerPool
from r2v.errors import UsageError
from r2v.llm.providers.keys import require_sendable
from r2v.llm.types import Request
from r2v.storage.paths import SITE_LEASES

_SECONDS = Range(at_least=1, at_most=86_400)


class WebArena:
    """WebArena's tasks by options. `tasks`: ids, None for all; `sites`: only tasks that need no other sites; each a
    list or a text of words. `judge`: the model for fuzzy answers, None for none; `judged`: False leaves tasks with such
    answers out. `reset`: auto resets the sites before the episode after one that changed them, if WA_FULL_RESET is set;
    never does not. `traces`: the folder of recorded traffic, empty for none."""

    name = "webarena"
    version = "1"
    pace = PACES["webarena"]
    decoys, injection = staticmethod(surface.decoys), staticmethod(surface.injection)

    def __init__(
        self,
        *,
        tasks: str | Sequence[int] | None = None,
        sites: str | Sequence[str] | None = None,
        judge: str | Mapping[str, Any] | None = None,
        judged: bool = True,
        reset: Literal["auto", "never"] = "auto",
        per_site: int = 4,
        traces: str = "data/webarena/traces",
        slow_mo: int | None = None,
        longest: int = 40_000,
        page_seconds: float = 10.0,
        reset_seconds: float = 180.0,
        step_seconds: float = 180.0,
        episode_seconds: float = 3600.0,
    ) -> None:
        require("env.options.per_site", Range(at_least=1, at_most=1000), per_site)
        require("env.options.longest", Range(at_least=200, at_most=10_000_000), longest)
        for name, value in (("page", page_seconds), ("reset", reset_seconds), ("step", step_seconds)):
            require(f"env.options.{name}_seconds", _SECONDS, value)
        if reset not in ("auto", "never"):
            raise UsageError(f"env.options.reset={reset!r:.40}: allowed: auto, never")
        ids = _listed("tasks", tasks)
        self._ids = ids and [int(id_) if isinstance(id_, str) and id_.isdecimal() else id_ for id_ in ids]
        self._needed = _listed("sites", sites)
        self._judged = judged
        self._judge = None if judge is None else AnswerJudge(judge)
        self._reset, self._traces = reset, traces
        self._options = {"longest": longest, "slow_mo": slow_mo, "page_seconds": page_seconds}
        self._limits = WorldLimits(
            reset_seconds=reset_seconds, step_seconds=step_seconds, episode_seconds=episode_seconds
        )
        self.capabilities = Capabilities(
            deterministic=False, parallel=False, per_site=per_site, needs_network=True, waits=True
        )
        self._pools: dict[str | None, tuple[WorkerPool, SiteState | None]] = {}

    @staticmethod
    def listed_here(**_: object) -> bool:
        """True if the tasks can be listed on this machine."""
        return is_installed()

    @staticmethod
    def require_set_up(judge: object = None, **_: object) -> None:
        """Raise UsageError if the child is not installed, no site is named, or the judge's key may not be sent."""
        require_installed()
        if isinstance(judge, Mapping) and isinstance(variable := judge.get("api_key_env"), str):
            require_sendable(variable)
        if not any(name.startswith("WA_") for name in os.environ):
            site_set(None, TASK_SITES)

    def require_here(self) -> None:
        """Raise UsageError if the child is not installed, a needed site is not named, or there is no browser. The sites
        of named sets are checked when a set is used."""
        self.require_set_up()
        if not any(site_names()):
            site_set(None, self._sites_needed)
        find_chromium()

    @cached_property
    def _tasks(self) -> list[Task]:
        tasks = chosen_tasks(self._ids, self._needed)
        fuzzy = [task for task in tasks if task.payload["judged"]]
        if not self._judged:
            tasks = [task for task in tasks if not task.payload["judged"]]
        elif fuzzy and self._judge is None:
            raise UsageError(
                f"env.options: {len(fuzzy)} of {len(tasks)} tasks have answers that a model judges (fuzzy_match); name "
                "one in env.options.judge=PROVIDER:MODEL, or leave them out by env.options.judged=false"
            )
        return tasks

    @property
    def _sites_needed(self) -> set[str]:
        return {site for task in self.tasks() for site in task.payload["sites"]}

    def tasks(self) -> Sequence[Task]:
        """Return the chosen tasks in the official order. Raises UsageError if the child is not installed, or a task
        needs a judge and none is named."""
        return self._tasks

    def judge_by_record(self) -> str | None:
        """Use only this project's journaled verdicts on fuzzy answers (`AnswerJudge.by_record`); return the judge's
        name, None if no task needs it."""
        if self._judge is None or not any(task.payload["judged"] for task in self.tasks()):
            return None
        self._judge.by_record = True
        return self._judge.name

    def make(self) -> WebArenaEnvironment:
        """Return a fresh world on the site set of WA_SHOPPING, WA_MAP, ... Raises UsageError for a missing site."""
        return self.make_at(None)

    def make_at(self, site: str | None) -> WebArenaEnvironment:
        """Return a fresh world on the site set of the variables WA_<SITE>_SHOPPING, ... Raises as `make` does."""
        if site not in self._pools:
            sites = site_set(site, self._sites_needed)
            state = _state(sites) if sites.reset and self._reset == "auto" else None
            self._pools[site] = self._pool(sites), state
        pool, state = self._pools[site]
        return WebArenaEnvironment(pool, limits=self._limits, tools=WEB_TOOLS, judge=self._judge, sites=state)

    def close(self) -> None:
        """End the idle workers."""
        for pool, _ in self._pools.values():
            pool.close()

    def players(self) -> Mapping[str, Callable[[Request], str]]:
        """Return the contract check's empty player, which answers "done" at once."""
        return {"empty": lambda request: '{"tool":"send_msg_to_user","text":"done"}'}

    def _pool(self, sites: SiteSet) -> WorkerPool:
        options = {
            **self._options,
            "show_goal": False,
            "show_pages": True,
            "shown": sites.shown(),
            "traces": str(Path(self._traces).resolve()) if self._traces else "",
        }
        own = {"NLTK_DATA": str(webarena_home() / "nltk_data"), "PYTHONWARNINGS": "ignore"}
        return browser_pool(
            options,
            WEB_TOOLS,
            variables={**sites.variables(), **own},
            world="r2v.envs.webarena.world:WebArenaWorld",
            python=child_python(),
        )


WEB_TOOLS = (*ON_PAGE, *ON_THE_WEB, *ANSWERING)


def _state(sites: SiteSet) -> SiteState:
    """Return the record of changes to a set, named by its addresses, since two sets may share a site."""
    name = hashlib.sha256("\n".join(sorted(sites.urls.values())).encode()).hexdigest()[:12]
    return SiteState(SITE_LEASES / f"webarena-{name}.changed")


def _listed(option: str, value: object) -> Any:
    """Return an option as a list or None; a text is split into words, the only form that an audit accepts from others'
    folders. Raises UsageError for anything else."""
    items = value.replace(",", " ").split() if isinstance(value, str) else value
    if items is None or (isinstance(items, Sequence) and items):
        return items if items is None else list(items)
    raise UsageError(f"env.options.{option}={value!r:.40}: give a list, or none for all")
