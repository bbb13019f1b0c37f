"""Playing a task by a list of calls; an element is named as on the page: `[textbox Comment]`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from r2v.envs.base import Info, Task
from r2v.envs.webarena.benchmark import WebArena

Call = tuple[str, ...]
_ELEMENT = re.compile(r"\[(\w+) ([^\]]*)\]")


@dataclass
class Played:
    """The outcome of an episode."""

    observations: list[str]
    ended: bool
    info: Info


def call(observation: str, words: Call) -> str:
    """Return a tool call with the arguments `name=value`; the bid of an element is looked up on the page."""
    arguments = dict(word.partition("=")[::2] for word in words[1:])
    if found := _ELEMENT.fullmatch(arguments.get("bid", "")):
        line = re.search(rf"\[(\w+)\] {found[1]} '{re.escape(found[2])}'", observation)
        assert line is not None, (words, observation)
        arguments["bid"] = line[1]
    return json.dumps({"tool": words[0], **arguments})


def play(benchmark: WebArena, task: Task, calls: Sequence[Call]) -> Played:
    world = benchmark.make()
    try:
        observation, info = world.reset(seed=1, task=task)
        if info.env_fault is not None:  # a browser that hangs is restarted, as in R2V
            observation, info = world.reset(seed=1, task=task)
        assert info.env_fault is None, info.env_fault
        seen, ended = [observation], False
        for words in calls:
            assert not ended, (task.task_id, words)
            observation, _, terminated, truncated, info = world.step(call(observation, words))
            ended = terminated or truncated
            seen.append(observation)
        return Played(seen, ended, info)
    finally:
        world.close()
