"""Action signatures: the tool of an action and, of each argument, the text that its value was read from.

    signature('{"tool":"get","id":"r2"}', goal, observations, tools)     # "get id=page"
    signature("take the brass key", goal, observations)                  # "take page goal"

Two actions of one signature do the same for goals of other values. A role is `goal` (the value occurs in the goal),
`page` (in the newest observation), `seen` (in an earlier one), `new` (nowhere), or `free` (the tool's schema says that
any value serves). Of a turn with several calls the words beside them are left out. A command in plain text is its first
word and the roles of the others; so is the argument of a benchmark whose only tool takes nothing but a command.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from r2v.data.action import parse_action
from r2v.router.page_signals import shows
from r2v.router.spans import free_arguments
from r2v.wire.message import ToolSpec

UNPARSEABLE = "unparseable"
_WORDS = 8
"""Words of a command whose roles are told; of prose without a call none would equal another otherwise."""


def tool_of(action: str, tools: Sequence[ToolSpec] = ()) -> str:
    """Return the tool that an action calls, the first word of a command in plain text, or UNPARSEABLE."""
    return _parts(action, tools)[0][0]


def signature(action: str, goal: str, observations: Sequence[str], tools: Sequence[ToolSpec] = ()) -> str:
    """Return the tool of an action and the roles of its arguments in the state that it answers."""

    def role(value: str) -> str:
        if shows(value, goal):
            return "goal"
        if shows(value, observations[-1]):
            return "page"
        return "seen" if any(shows(value, page) for page in observations[:-1]) else "new"

    parts = []
    for tool, arguments, words in _parts(action, tools):
        roles = [f"{name}={'free' if value is None else role(value)}" for name, value in arguments]
        parts.append(" ".join([tool, *roles, *(name for name, _ in groupby(map(role, words)))]))
    return "; ".join(parts)


def _parts(action: str, tools: Sequence[ToolSpec]) -> list[tuple[str, list[tuple[str, str | None]], list[str]]]:
    """(tool, values by argument, further words) of each call of an action; the value of a free argument is None."""
    lines = [action] if parse_action(action).action_type else action.splitlines()
    calls = [line for line in lines if parse_action(line).action_type]
    if not calls:
        return [_command("" if action.lstrip()[:1] in ("{", "[") else action)]
    return [_call(line, tools) for line in calls]


def _call(line: str, tools: Sequence[ToolSpec]) -> tuple[str, list[tuple[str, str | None]], list[str]]:
    call, free = parse_action(line), free_arguments(line, tools)
    values = {name: _text(value) for name, value in sorted(call.arguments.items())}
    if len(tools) == 1 and len(tools[0].parameters.get("properties", {})) == len(values) == 1 and not free:
        return _command(*values.values())
    return call.action_type, [(name, None if name in free else value) for name, value in values.items()], []


def _command(text: str) -> tuple[str, list[tuple[str, str | None]], list[str]]:
    words = text.split()[: _WORDS + 1]
    return (words[0].lower() if words else UNPARSEABLE), [], words[1:]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
