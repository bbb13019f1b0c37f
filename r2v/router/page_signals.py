"""Page signals: marks of any page of text, and the texts in which an action's arguments were read.

Nothing here depends on the benchmark: patterns find error words and cut-off marks; lines of third parties are found by
their words and by the benchmark's mark (`Capabilities.untrusted`); an argument is grounded in the lines that show its
value. An identifier that no line shows was made up; one that only third parties' lines show was planted; and the line
that an identifier is copied from should show the other arguments too.

    signature('{"tool":"get","id":"r2"}', goal, observations, tools)     # "get id=page"
    signature("take the brass key", goal, observations)                  # "take page goal"

An action's signature is its tool and, of each argument, the text that its value was read from: `goal`, `page` (the
newest observation), `seen` (an earlier one), `new` (nowhere), or `free` (the tool's schema says that any value serves).
Two actions of one signature do the same for goals of other values. Words around the calls of a turn are left out. A
command in plain text is its first word and the roles of the others; so is the argument of a benchmark whose only tool
takes nothing but a command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from r2v.data.action import parse_action
from r2v.llm.memo import by_digest
from r2v.router.spans import free_arguments
from r2v.wire.message import ToolSpec

_ERROR = re.compile(
    r'"error"\s*:|\b(errors?|exceptions?|traceback|failed|failures?|time[d-]?\s?out|connection reset'
    r"|HTTP (status )?[45]\d\d)\b",
    re.IGNORECASE,
)
_TRUNCATED = re.compile(r"truncated|elided|omitted|cut off|\[\.\.\.\]", re.IGNORECASE)
_UNTRUSTED = (
    r"\buntrusted\b|\b(ignore|disregard|forget|leave)\b.{0,24}"
    r"\b(task|instructions?|goal|above|previous)\b"
)

_SHORT = 500
"""Most characters of a line that is cheaper to keep than to hash."""


@by_digest(1 << 14)
def is_error(observation: str) -> bool:
    """True if the page reports a failure."""
    return _ERROR.search(observation) is not None


def is_truncated(observation: str) -> bool:
    """True if the page marks a part of it as left out."""
    return _TRUNCATED.search(observation) is not None


def is_untrusted(line: str, mark: str = "") -> bool:
    """True if the line matches `mark`, a regular expression of third parties' lines, or tries to change the task."""
    short, long = _untrusted(mark)
    return short(line) if len(line) <= _SHORT else long(line)


@lru_cache(8)
def _untrusted(mark: str) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """Return the tests for short lines and for long ones. A page of JSON is one line: cached as it is, thousands of
    them would stay in memory."""
    pattern = re.compile(f"{mark}|{_UNTRUSTED}" if mark else _UNTRUSTED, re.IGNORECASE)

    def matches(line: str) -> bool:
        return pattern.search(line) is not None

    return lru_cache(1 << 14)(matches), by_digest(1 << 14)(matches)


def grounding(values: Sequence[str], goal: str, observations: Sequence[str], mark: str = "") -> dict[str, float]:
    """Return shares of the argument values, in [0, 1]: `args_unseen` occur in no line of goal or pages,
    `args_untrusted` only in third parties' lines, `args_together` is the largest share that one trusted page line shows
    (1 without arguments)."""
    shown = list(dict.fromkeys(line for text in observations for line in text.splitlines()))
    trusted = [line for line in shown if not is_untrusted(line, mark)]
    total = max(1, len(values))
    seen = _count(values, "\n".join([goal, *shown]))
    seen_trusted = _count(values, "\n".join([goal, *trusted]))
    together = max((_count(values, line) for line in trusted), default=0)
    return {
        "args_unseen": (len(values) - seen) / total,
        "args_untrusted": (seen - seen_trusted) / total,
        "args_together": together / total if values else 1.0,
    }


def _count(values: Sequence[str], text: str) -> int:
    return sum(shows(value, text) for value in values)


def shows(value: str, text: str) -> bool:
    """True if the value occurs in the text as words of its own."""
    return value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


UNPARSEABLE = "unparseable"
_WORDS = 8
"""Most words of a command whose roles are in its signature: longer prose would have a signature of its own each
time."""


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
    """Return (tool, values by argument, further words) of each call of an action; a free argument's value is None."""
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
