"""World of a browser worker: one BrowserGym task at a time, each in its own context of one Chromium.

Tasks, rewards, actions, marks and accessibility tree are BrowserGym's own. The screenshot, the document snapshot and
the second browser for the chat are left out, since agents read text. A step waits until the page is still, not for a
fixed time.
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
    """A BrowserGym environment behind the worker's protocol. Importing `packages` registers the tasks, `tools` names
    the functions an agent may call, and `sites` lists the prefixes of the benchmark's addresses."""

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
        """Open the task `payload["id"]`, its page drawn from the instance and the seed. Raises RuntimeError for a site
        fault."""
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
        """Return further arguments for BrowserGym's environment."""
        return {}

    def step(self, action: str) -> dict[str, Any]:
        """Carry out a call `{"tool": name, ...arguments}`; a failed call is the agent's error, shown on the page."""
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
        """Grade the step just carried out and observe the page."""
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
        """Close the task's context and keep the browser. Raises RuntimeError if the browser died."""
        environment, self._environment = self._environment, None
        if environment is not None:
            # Close the pages first: a context that records traffic can wait for ever for a page's pending response
            # (microsoft/playwright#42448, playwright-dotnet#1906).
            for page in environment.context.pages if environment.context is not None else ():
                page.close()
            environment.close()
        CHROMIUM.require_alive()

    def call_of(self, action: str) -> tuple[Callable[..., None], dict[str, Any]]:
        """Return the function and the arguments of a call. Raises ValueError for anything else."""
        try:
            arguments = json.loads(action)
            function = self._tools[arguments.pop("tool")]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(f"no call of a tool; a call is one of {', '.join(self._tools)}") from error
        address = str(arguments.get("url", "about:blank"))
        if not address.startswith(("http://", "https://", "about:blank")):  # file: would expose this machine
            raise ValueError("an address begins with http:// or https://")
        return function, arguments

    def text(self, observation: dict[str, Any]) -> str:
        """Return an observation as the agent's text."""
        goal = observation["goal"] if self._show_goal else None
        return page_text(observation, goal=goal, pages=self._show_pages, longest=self._longest)


def _watched(entrypoint: Callable[..., Any], navigations: Navigations) -> Callable[..., Any]:
    """Return BrowserGym's task factory with the pages watched from the first one on."""

    def make(**options: Any) -> Any:
        task = entrypoint(**options)
        setup = task.setup

        def watched(page: Any) -> Any:
            navigations.watch(page.context)
            return setup(page=page)

        task.setup = watched
        return task

    return make


def _page_seed(payload: dict[str, Any], seed: int) -> int:
    """Return the 31-bit seed from which BrowserGym draws a page."""
    name = f"{payload['id']}\n{payload.get('instance', 0)}\n{seed}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1
