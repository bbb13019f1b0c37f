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
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from r2v.router.spans import free_arguments, parsed
from r2v.wire.message import ToolSpec

PAGES = 1 << 11
"""Pages whose facts are cached: those of a wave's conversations."""


def _pattern(pattern: str, words: Sequence[str]) -> Callable[[str], bool]:
    """Return a test for a pattern whose every match holds one of these lower-case words. Looking for them first takes a
    tenth of the time; in texts beyond ASCII, where other letters may match, the pattern alone is searched."""
    search = re.compile(pattern, re.IGNORECASE).search

    def occurs(text: str) -> bool:
        lower = text.lower()
        return (not text.isascii() or any(word in lower for word in words)) and search(text) is not None

    return occurs


is_error = _pattern(
    r'"error"\s*:|\b(errors?|exceptions?|traceback|failed|failures?|time[d-]?\s?out|connection reset'
    r"|HTTP (status )?[45]\d\d)\b",
    ("error", "exception", "traceback", "fail", "time", "connection reset", "http"),
)
"""True if the page reports a failure."""
_is_truncated = _pattern(
    r"truncated|elided|omitted|cut off|\[\.\.\.\]", ("truncated", "elided", "omitted", "cut off", "[....]")
)
_instructs = _pattern(
    r"\buntrusted\b|\b(ignore|disregard|forget|leave)\b.{0,24}\b(task|instructions?|goal|above|previous)\b",
    ("untrusted", "ignore", "disregard", "forget", "leave"),
)


@dataclass(frozen=True)
class PageFacts:
    """Marks of one page."""

    lines: int
    untrusted_lines: int
    is_error: bool
    is_truncated: bool
    """True if the page marks a part of it as left out."""
    trusted: str
    """The page without third parties' lines."""


@lru_cache(PAGES)
def facts_of(page: str, mark: str = "") -> PageFacts:
    """Return the facts of a page. A line is a third party's if it matches `mark`, a regular expression, or tries to
    change the task."""
    lines = page.splitlines()
    marked = re.compile(mark, re.IGNORECASE).search if mark else None
    instructs = _instructs if _instructs(page) else None
    trusted = [line for line in lines if not (marked and marked(line)) and not (instructs and instructs(line))]
    return PageFacts(
        lines=len(lines),
        untrusted_lines=len(lines) - len(trusted),
        is_error=is_error(page),
        is_truncated=_is_truncated(page),
        trusted=page if len(trusted) == len(lines) else "".join(f"{line}\n" for line in trusted),
    )


def grounding(values: Sequence[str], goal: str, observations: Sequence[str], mark: str = "") -> dict[str, float]:
    """Return shares of the argument values, in [0, 1]: `args_unseen` occur in no line of goal or pages,
    `args_untrusted` only in third parties' lines, `args_together` is the largest share that one trusted page line shows
    (1 without arguments)."""
    total, together = max(1, len(values)), 0
    trusted = [facts_of(page, mark).trusted for page in observations]
    for page in reversed(trusted):
        if together == len(values):
            break
        within = [value for value in values if value in page]
        for line in page.splitlines() if len(within) > together else ():
            candidates = [value for value in within if value in line]
            if len(candidates) > together:
                together = max(together, sum([shows(value, line) for value in candidates]))
    seen_trusted = seen = sum(_seen(value, goal, trusted) for value in values)
    if trusted != list(observations):
        seen = sum(_seen(value, goal, observations) for value in values)
    return {
        "args_together": together / total if values else 1.0,
        "args_unseen": (len(values) - seen) / total,
        "args_untrusted": (seen - seen_trusted) / total,
    }


def _seen(value: str, goal: str, pages: Sequence[str]) -> bool:
    if value.splitlines() == [value]:
        return shows(value, goal) or any(shows(value, page) for page in reversed(pages))
    lines = dict.fromkeys(line for page in pages for line in page.splitlines())  # the value spans lines
    return shows(value, "\n".join([goal, *lines]))


def shows(value: str, text: str) -> bool:
    """True if the value occurs in the text as words of its own."""
    begin = text.find(value)
    while begin >= 0:
        if not (_in_word(text[begin - 1 : begin]) or _in_word(text[(end := begin + len(value)) : end + 1])):
            return True
        begin = text.find(value, begin + 1)
    return False


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


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
    lines = [action] if parsed(action).action_type else action.splitlines()
    calls = [line for line in lines if parsed(line).action_type]
    if not calls:
        return [_command("" if action.lstrip()[:1] in ("{", "[") else action)]
    return [_call(line, tools) for line in calls]


def _call(line: str, tools: Sequence[ToolSpec]) -> tuple[str, list[tuple[str, str | None]], list[str]]:
    call, free = parsed(line), free_arguments(line, tools)
    values = {name: _text(value) for name, value in sorted(call.arguments.items())}
    if len(tools) == 1 and len(tools[0].parameters.get("properties", {})) == len(values) == 1 and not free:
        return _command(*values.values())
    return call.action_type, [(name, None if name in free else value) for name, value in values.items()], []


def _command(text: str) -> tuple[str, list[tuple[str, str | None]], list[str]]:
    words = text.split()[: _WORDS + 1]
    return (words[0].lower() if words else UNPARSEABLE), [], words[1:]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
