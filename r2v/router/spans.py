"""Free-argument spans: which tokens of an action carry the value of a free argument.

A tool's schema marks arguments whose value does not matter (the wording of a reply, any technician who is
free). Doubt about those is harmless and misleads a router: 1 to 1.4 nats on actions that cannot go wrong.
Tokens are matched to arguments by character offsets, so it does not matter how a tokenizer cuts: one token
per `"field":"value"` pair or several per word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from r2v.data.action import parse_action
from r2v.llm.types import Sample
from r2v.wire.message import ToolSpec

_GAP = re.compile(r"[\s:,]*")


def free_arguments(text: str, tools: Sequence[ToolSpec]) -> frozenset[str]:
    """Names of the proposed tool's free arguments; none for an unknown tool or unreadable text."""
    tool = parse_action(text).action_type
    return next((spec.free_arguments for spec in tools if spec.name == tool), frozenset())


def argument_spans(text: str) -> dict[str, tuple[int, int]]:
    """Half-open character spans of the values in a tool call, `tool` included; empty where it is none.

    >>> argument_spans('{"tool":"get","id":"r2"}')["id"]
    (19, 23)
    """
    if not parse_action(text).action_type:
        return {}
    decoder, spans = json.JSONDecoder(), {}
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        start = _skip(text, at)
        _, at = decoder.raw_decode(text, start)
        spans[str(name)] = (start, at)
        at = _skip(text, at)
    return spans


def _skip(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap else at


def free_tokens(sample: Sample, tools: Sequence[ToolSpec]) -> tuple[bool, ...]:
    """Per token: does it overlap the value of a free argument?

    Where the tokens do not spell the text (a character cut between tokens), none can be told to be free.
    """
    start = "".join(sample.tokens).find(sample.text)
    free = free_arguments(sample.text, tools)
    if start < 0 or not free:
        return (False,) * len(sample.tokens)
    spans = [span for name, span in argument_spans(sample.text).items() if name in free]
    marks, at = [], -start
    for token in sample.tokens:
        marks.append(any(at < stop and begin < at + len(token) for begin, stop in spans))
        at += len(token)
    return tuple(marks)
