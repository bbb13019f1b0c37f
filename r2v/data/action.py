"""Action text: a one-line JSON tool call `{"tool": "get", "id": "r204"}`, or a benchmark's own format.

The raw text is executed and replayed. The parsed form serves comparison: two texts with the same canonical form are the
same action.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection
from typing import Any

from r2v.data.episode import Action


def parse_action(text: str) -> Action:
    """Return the action with its type and arguments, both empty for text that is no JSON tool call."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return Action(raw_text=text)
    if not isinstance(call, dict) or not isinstance(call.get("tool"), str):
        return Action(raw_text=text)
    arguments = {str(name): value for name, value in call.items() if name != "tool"}
    return Action(raw_text=text, action_type=call["tool"], arguments=arguments)


def canonical(text: str, free: Collection[str] = ()) -> str:
    """Return the text with normal spacing, key order and Unicode form, and "*" for the values of `free` arguments,
    which do not matter, so that equal strings mean equal actions."""
    action = parse_action(text)
    if not action.action_type:
        return " ".join(unicodedata.normalize("NFC", text).split())
    arguments: dict[str, Any] = {name: "*" if name in free else value for name, value in action.arguments.items()}
    body = json.dumps(
        {"tool": action.action_type, **arguments}, sort_keys=True, ensure_ascii=False, separators=(",", ":")
    )
    return unicodedata.normalize("NFC", body)
