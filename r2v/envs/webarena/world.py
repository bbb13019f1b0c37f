"""World of a WebArena worker: a task in one Chromium, graded by the official evaluators.

The task is BrowserGym's own: login by the sites' forms at every reset, validation after every step. Three parts differ.
If an evaluator needs a model, the step returns the question and `grade` continues with the replies, so this process
has no key and uses no network but the sites. An episode without an answer is judged wrong without a question. Addresses
are shown and accepted by their public names.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from r2v.envs.browser.world import BrowserWorld
from r2v.envs.webarena.trace import save_trace

_UNANSWERED = "incorrect, different"
"""A reply that both official prompts' parsers read as no."""


class _Unjudged(Exception):
    """A question of an evaluator without a reply yet."""


class WebArenaWorld(BrowserWorld):
    """A WebArena task. `shown` maps each site's address to its public name; `traces` is the folder for every episode's
    traffic, empty for none."""

    def __init__(self, *, shown: dict[str, str], traces: str, page_seconds: float, **options: Any) -> None:
        super().__init__(**options, packages=["browsergym.webarena"], page_seconds=page_seconds, sites=[*shown])
        self._shown = sorted(shown.items(), key=lambda pair: -len(pair[0]))
        self._traces = traces
        self._har = ""
        self._replies: dict[str, str] = {}
        self._about: dict[str, Any] = {}
        helpers = importlib.import_module("webarena.evaluation_harness.helper_functions")
        vars(helpers)["generate_from_openai_chat_completion"] = self._judged

    def reset(self, seed: int, task: dict[str, Any]) -> dict[str, Any]:
        """Log in and open the task's first page."""
        answer = super().reset(seed, task)
        graded: list[tuple[float, float]] = []
        official = self._environment.task
        official.validate = _timed(official.validate, graded)
        about = {"task_id": task["task_id"], "seed": seed, "begun": time.time(), "actions": [], "graded": graded}
        self._about = about
        return answer

    def settings(self) -> dict[str, Any]:
        """Return the context's arguments that record the traffic."""
        if not self._traces:
            return {}
        file, self._har = tempfile.mkstemp(suffix=".har")
        os.close(file)
        return {"pw_context_kwargs": {"record_har_path": self._har, "record_har_mode": "full"}}

    def step(self, action: str) -> dict[str, Any]:
        """Carry out a call. If a model must judge, the answer has the questions in `asks`, and `grade` continues."""
        self._about["actions"].append(action)
        return self._graded(lambda: super(WebArenaWorld, self).step(action))

    def grade(self, replies: dict[str, str]) -> dict[str, Any]:
        """Grade the same step again with these replies by question."""
        self._replies.update(replies)
        return self._graded(super().conclude)

    def restore_sites(self) -> dict[str, Any]:
        """Reset all sites by the server of WA_FULL_RESET and wait for their answers. Raises the client's error."""
        instance = importlib.import_module("browsergym.webarena.instance").WebArenaInstance()
        instance.full_reset(skip_if_not_set=False)
        return {"observation": ""}

    def text(self, observation: dict[str, Any]) -> str:
        """Return an observation's text with the public names of the sites."""
        return self._renamed(super().text(observation))

    def call_of(self, action: str) -> tuple[Callable[..., None], dict[str, Any]]:
        """Return the function and the arguments of a call, with the addresses of the sites."""
        function, arguments = super().call_of(action)
        return function, {
            name: self._addressed(value) if isinstance(value, str) else value for name, value in arguments.items()
        }

    def close(self) -> None:
        """Close the task's context and write its trace."""
        try:
            super().close()
        finally:
            recorded, self._har = self._har, ""
            if recorded and self._about.get("actions"):
                save_trace(Path(recorded), Path(self._traces), self._about, self._renamed)
            if recorded:
                Path(recorded).unlink(missing_ok=True)
            self._about = {}

    def _graded(self, conclude: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            answer = conclude()
        except _Unjudged as question:
            nothing = {"observation": "", "reward": 0.0, "terminated": False, "truncated": False}
            return nothing | {"asks": [json.loads(str(question))]}
        self._about["reward"] = answer["reward"]
        self._about["answer"] = self._said()
        self._about["fault"] = answer.get("env_fault")
        return answer

    def _said(self) -> str | None:
        """Return the agent's answer to the user; "N/A" if it reported the task infeasible, None without an answer."""
        last = self._environment.chat.messages[-1]
        if last["role"] == "infeasible":
            return "N/A"
        return str(last["message"]) if last["role"] == "assistant" else None

    def _judged(self, *, messages: list[dict[str, Any]], **_: Any) -> str:
        """Return the reply to an evaluator's question, in place of its provider call. Raises _Unjudged without one."""
        if self._said() is None:
            return _UNANSWERED
        question = json.dumps(messages)
        if question not in self._replies:
            raise _Unjudged(question)
        return self._replies[question]

    def _renamed(self, text: str) -> str:
        for url, name in self._shown:
            text = text.replace(url, name)
        return text

    def _addressed(self, text: str) -> str:
        for url, name in sorted(self._shown, key=lambda pair: -len(pair[1])):
            text = text.replace(name, url)
        return text


def _timed(validate: Callable[..., Any], graded: list[tuple[float, float]]) -> Callable[..., Any]:
    """Return the official grading with its (start, end) times appended to `graded`, to exclude its page loads from the
    trace."""

    def timed(*arguments: Any) -> Any:
        begun = time.time()
        try:
            return validate(*arguments)
        finally:
            graded.append((begun, time.time()))

    return timed
