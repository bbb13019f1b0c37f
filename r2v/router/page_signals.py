"""Page signals: marks that any page of text may carry, and where an action's arguments were read.

Nothing here knows a benchmark: error words and cut-off marks are told by patterns, lines of outsiders by their words
and by the mark that a benchmark says they bear (`Capabilities.untrusted`), and an argument is grounded in the lines
that show its value. An identifier that no line shows was made up; one that only outsiders' lines show was planted; and
the line an identifier is copied from should bear the other arguments too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from r2v.llm.memo import by_digest

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
"""Characters of a line that is cheaper to keep than to hash."""


@by_digest(1 << 14)
def is_error(observation: str) -> bool:
    """Whether the page reports a failure."""
    return _ERROR.search(observation) is not None


def is_truncated(observation: str) -> bool:
    """Whether the page says that something of it is missing."""
    return _TRUNCATED.search(observation) is not None


def is_untrusted(line: str, mark: str = "") -> bool:
    """Whether the line bears an outsider's `mark`, a regular expression, or tries to change the task."""
    short, long = _untrusted(mark)
    return short(line) if len(line) <= _SHORT else long(line)


@lru_cache(8)
def _untrusted(mark: str) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """For short lines and for long ones. A page of JSON is one line: remembered as it is, thousands of them would stay
    in memory."""
    pattern = re.compile(f"{mark}|{_UNTRUSTED}" if mark else _UNTRUSTED, re.IGNORECASE)

    def found(line: str) -> bool:
        return pattern.search(line) is not None

    return lru_cache(1 << 14)(found), by_digest(1 << 14)(found)


def grounding(values: Sequence[str], goal: str, observations: Sequence[str], mark: str = "") -> dict[str, float]:
    """Shares of the argument values in [0, 1]: `args_unseen` occur in no line of goal or pages,
    `args_untrusted` only in outsiders' lines, `args_together` is the most that one trusted page line shows
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
