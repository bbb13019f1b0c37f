"""The world of a worker: one BrowserGym task at a time, each in a context of its own in one Chromium.

It is BrowserGym's own environment (its tasks, its rewards, its actions, its marks and its accessibility tree) without
what a reader of text does not need: the screenshot, the snapshot of the document, the second browser that shows the
chat. It waits until the page is still, not for a fixed time.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
from collections.abc import Callable
from typing import Any

from r2v.envs.browser.launching import CHROMIUM, start_playwright, wait_longer
from r2v.envs.browser.miniwob_tasks import is_solved
from r2v.envs.browser.observing import environment_class, page_text, still
from r2v.envs.browser.trouble import Navigations, mistake_of


class BrowserWorld:
    """`packages` register the tasks, `tools` are the functions that an agent may call, `sites` say how addresses
    of the benchmark begin."""

    def __init__(
        self,
        *,
        packages: list[str],
        browser: str,
        flags: list[str],
        tools: list[str],
        sites: list[str],
        longest: int,
        slow_mo: int | None = None,
        settle: float = 0.5,
        action_seconds: float = 5.0,
        page_seconds: float | None = None,
        coordinates: bool = False,
        show_goal: bool = True,
        show_pages: bool = False,
    ) -> None:
        logging.getLogger("browsergym").setLevel(logging.ERROR)
        start_playwright(browser, flags)
        wait_longer(action_seconds)
        registration = importlib.import_module("browsergym.core.registration")
        vars(registration)["BrowserEnv"] = environment_class(coordinates)
        for package in packages:
            importlib.import_module(package)
        self._functions = importlib.import_module("browsergym.core.action.functions")
        self._sites, self._longest, self._settle = sites, longest, settle
        paces = {"slow_mo": slow_mo, "timeout": None if page_seconds is None else int(page_seconds * 1000)}
        self._late = 30.0 if page_seconds is None else page_seconds
        self._paces = {name: value for name, value in paces.items() if value is not None}
        self._show_goal, self._show_pages = show_goal, show_pages
        self._tools = {name: getattr(self._functions, name) for name in tools}
        self._environment: Any = None
        self._begun: dict[str, Any] = {}

    def reset(self, seed: int, task: dict[str, Any]) -> dict[str, Any]:
        """Open the task `payload["id"]`; its page is drawn from the instance and the episode's seed."""
        self.close()
        payload = task["payload"]
        gymnasium = importlib.import_module("gymnasium")
        spec = gymnasium.spec(payload["id"])
        settings = {**spec.kwargs, **self._paces, **self.settings()}
        self._environment = spec.entry_point(**settings, pre_observation_delay=0.0)
        self._environment.settle = lambda: still(self._environment.page, self._settle)
        self._navigations = Navigations(self._sites)
        self._environment.task_entrypoint = _watched(self._environment.task_entrypoint, self._navigations)
        observation, _ = self._environment.reset(seed=_page_seed(payload, seed))
        if fault := self._navigations.fault():
            raise RuntimeError(fault)
        return {"observation": self.text(observation), "extra": {}}

    def settings(self) -> dict[str, Any]:
        """More arguments of BrowserGym's environment."""
        return {}

    def step(self, action: str) -> dict[str, Any]:
        """Carry out a call `{"tool": name, ...arguments}`; a call that fails is the agent's error, told on the page."""
        environment = self._environment
        self._begun, send, infeasible = environment.pre_step()
        vars(self._functions).update(
            page=environment.page,
            send_message_to_user=send,
            report_infeasible_instructions=infeasible,
            demo_mode="off",
        )
        environment.last_action, environment.last_action_error = action, ""
        try:
            function, arguments = self.call_of(action)
            function(**arguments)
        except Exception as error:
            environment.last_action_error = mistake_of(error)
        if (fault := self._navigations.late(self._late)) is not None:
            gone = {"observation": "", "reward": 0.0, "terminated": False, "truncated": True}
            return gone | {"env_fault": fault}
        environment.settle()
        return self.conclude()

    def conclude(self) -> dict[str, Any]:
        """Grade the step that was carried out, and look at the page."""
        observation, reward, terminated, truncated, info = self._environment.post_step(self._begun)
        score = reward
        if (raw := info["task_info"].get("RAW_REWARD_GLOBAL")) is not None:
            score, reward = max(0.0, raw), is_solved(self._environment.task.subdomain, raw)
        answer: dict[str, Any] = {"observation": self.text(observation), "reward": float(reward)}
        answer |= {"terminated": bool(terminated), "truncated": bool(truncated)}
        answer |= {"is_error": bool(observation["last_action_error"])}
        if fault := self._navigations.fault():
            return answer | {"terminated": False, "truncated": True, "env_fault": fault}
        return answer | ({"success": reward > 0, "partial_score": float(score)} if terminated or truncated else {})

    def close(self) -> None:
        """Close the task's context; the browser stays. Raises where it died."""
        environment, self._environment = self._environment, None
        if environment is not None:
            # First its pages: a context whose traffic is recorded may wait for ever for an answer that a page still
            # expects (microsoft/playwright#42448, playwright-dotnet#1906).
            for page in environment.context.pages if environment.context is not None else ():
                page.close()
            environment.close()
        CHROMIUM.require_alive()

    def call_of(self, action: str) -> tuple[Callable[..., None], dict[str, Any]]:
        """The function and the arguments of a call. Raises ValueError for anything else."""
        try:
            arguments = json.loads(action)
            function = self._tools[arguments.pop("tool")]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(f"no call of a tool; a call is one of {', '.join(self._tools)}") from error
        address = str(arguments.get("url", "about:blank"))
        if not address.startswith(("http://", "https://", "about:blank")):  # a file of this machine is no page
            raise ValueError("an address begins with http:// or https://")
        return function, arguments

    def text(self, observation: dict[str, Any]) -> str:
        """What an agent reads of an observation."""
        goal = observation["goal"] if self._show_goal else None
        return page_text(observation, goal=goal, pages=self._show_pages, longest=self._longest)


def _watched(entrypoint: Callable[..., Any], navigations: Navigations) -> Callable[..., Any]:
    """BrowserGym's maker of a task, whose pages are watched from the first on."""

    def make(**wanted: Any) -> Any:
        task = entrypoint(**wanted)
        setup = task.setup

        def watched(page: Any) -> Any:
            navigations.watch(page.context)
            return setup(page=page)

        task.setup = watched
        return task

    return make


def _page_seed(payload: dict[str, Any], seed: int) -> int:
    """What BrowserGym draws a page from."""
    name = f"{payload['id']}\n{payload.get('instance', 0)}\n{seed}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1
