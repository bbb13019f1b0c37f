"""The world of a worker: a task of WebArena in one Chromium, graded by the official evaluators.

It is BrowserGym's own task: login by the sites' forms at every reset, validation after every step. Three things differ.
Where an evaluator asks a model, the step answers with the question, and `grade` goes on with the replies: no key and no
network but the sites is in this process. About an episode without an answer nobody is asked. And an address is
shown and taken by its public name.
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
"""What both official prompts' replies are read for: no."""


class _Unjudged(Exception):
    """A question of an evaluator that no reply is known to."""


class WebArenaWorld(BrowserWorld):
    """`shown` has each site's address and public name; `traces` is the folder in which every episode's traffic is kept,
    none where it is empty."""

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
        """Log in and open the page that the task begins at."""
        answer = super().reset(seed, task)
        graded: list[tuple[float, float]] = []
        official = self._environment.task
        official.validate = _timed(official.validate, graded)
        about = {"task_id": task["task_id"], "seed": seed, "begun": time.time(), "actions": [], "graded": graded}
        self._about = about
        return answer

    def settings(self) -> dict[str, Any]:
        """Where the traffic is recorded."""
        if not self._traces:
            return {}
        file, self._har = tempfile.mkstemp(suffix=".har")
        os.close(file)
        return {"pw_context_kwargs": {"record_har_path": self._har, "record_har_mode": "full"}}

    def step(self, action: str) -> dict[str, Any]:
        """Carry out a call. Where a model is to judge, the answer's `asks` holds the questions, and `grade` goes on."""
        self._about["actions"].append(action)
        return self._graded(lambda: super(WebArenaWorld, self).step(action))

    def grade(self, replies: dict[str, str]) -> dict[str, Any]:
        """Grade the same step again, knowing these replies by their questions."""
        self._replies.update(replies)
        return self._graded(super().conclude)

    def restore_sites(self) -> dict[str, Any]:
        """Have the server of WA_FULL_RESET put all sites back, and wait until they answer. Raises where it cannot."""
        instance = importlib.import_module("browsergym.webarena.instance").WebArenaInstance()
        instance.full_reset(skip_if_not_set=False)
        return {"observation": ""}

    def text(self, observation: dict[str, Any]) -> str:
        """An observation with the public names of the sites."""
        return self._renamed(super().text(observation))

    def call_of(self, action: str) -> tuple[Callable[..., None], dict[str, Any]]:
        """The function and the arguments of a call, with the addresses of the sites."""
        function, arguments = super().call_of(action)
        return function, {
            name: self._addressed(value) if isinstance(value, str) else value for name, value in arguments.items()
        }

    def close(self) -> None:
        """Close the task's context, and keep what went over the network."""
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
        """What the agent has told the user; "N/A" where it found the task infeasible, None where nothing."""
        last = self._environment.chat.messages[-1]
        if last["role"] == "infeasible":
            return "N/A"
        return str(last["message"]) if last["role"] == "assistant" else None

    def _judged(self, *, messages: list[dict[str, Any]], **_: Any) -> str:
        """In place of the official call of a provider. Raises _Unjudged for what nobody has replied to."""
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
    """The official grading, whose beginnings and ends are kept: what it opens is no page of the agent's."""

    def timed(*arguments: Any) -> Any:
        begun = time.time()
        try:
            return validate(*arguments)
        finally:
            graded.append((begun, time.time()))

    return timed
