"""Free-argument spans: the tokens of an action that carry a free argument's value.

A tool's schema marks arguments whose value does not matter (the wording of a reply, any technician who is
free). Entropy of these is harmless and misleads a router: 1 to 1.4 nats on actions that cannot go wrong.
Tokens are matched to arguments by character offsets, so any tokenizer serves: one token per `"field":"value"`
pair or several per word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from r2v.data.action import parse_action
from r2v.llm.types import Sample
from r2v.wire.message import ToolSpec

_DECODER = json.JSONDecoder()
REMEMBERED = 1 << 11
"""Actions whose parsed form is cached: each is read again at every later step of its episode."""
parsed = lru_cache(REMEMBERED)(parse_action)
"""The parsed form of an action's text, cached for all its readers."""


def free_arguments(text: str, tools: Sequence[ToolSpec]) -> frozenset[str]:
    """Return the names of the proposed tool's free arguments; none for an unknown tool or unreadable text."""
    tool = parsed(text).action_type
    for spec in tools:
        if spec.name == tool:
            return spec.free_arguments
    return frozenset()


def argument_spans(text: str, action: str) -> dict[str, tuple[int, int]]:
    """Return half-open character spans of the action's arguments in the model's text, in any form; of an argument that
    is given twice, the last.

    >>> argument_spans('{"name": "get", "arguments": {"id": "r2"}}', '{"tool":"get","id":"r2"}')
    {'id': (36, 40)}
    """
    spans: dict[str, tuple[int, int]] = {}
    for name, value in parsed(action).arguments.items():
        for start in _values_of(name, text):
            end = _end_of(value, text, start)
            if end is not None:
                spans[name] = (start, end)
    return spans


def _end_of(value: Any, text: str, start: int) -> int | None:
    """Return the end of this value at `start`, as JSON or as plain text; None where another value begins there."""
    with suppress(ValueError):
        decoded, end = _DECODER.raw_decode(text, start)
        if decoded == value:
            return end
    return start + len(value) if isinstance(value, str) and value and text.startswith(value, start) else None


def _values_of(name: str, text: str) -> Iterator[int]:
    """Yield the starts of an argument's values: in JSON, `<parameter=id>` and `<arg_key>id</arg_key>`."""
    word = re.escape(name)
    key = rf"{re.escape(json.dumps(name, ensure_ascii=False))}\s*:\s*|<parameter={word}>\s*"
    for match in re.finditer(rf"{key}|<arg_key>{word}</arg_key>\s*<arg_value>", text):
        yield match.end()


def free_tokens(sample: Sample, tools: Sequence[ToolSpec]) -> tuple[bool, ...]:
    """Return, per token, True if it overlaps the value of a free argument.

    Where the tokens do not spell a value (a character cut between tokens), none of it counts as free.
    """
    free = free_arguments(sample.text, tools)
    if not free:
        return (False,) * len(sample.tokens)
    spans = [span for name, span in argument_spans("".join(sample.tokens), sample.text).items() if name in free]
    marks, at = [], 0
    for token in sample.tokens:
        marks.append(any(at < stop and begin < at + len(token) for begin, stop in spans))
        at += len(token)
    return tuple(marks)
