"""Reading action text: a one-line JSON tool call `{"tool": "get", "id": "r204"}`, or whatever a benchmark takes.

What is executed and replayed is always the raw text. The parsed form serves comparison: two texts with the
same canonical form are the same action.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection
from typing import Any

from r2v.data.episode import Action


def parse_action(text: str) -> Action:
    """The action with its type and arguments; both are empty where the text is no JSON tool call."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return Action(raw_text=text)
    if not isinstance(call, dict) or not isinstance(call.get("tool"), str):
        return Action(raw_text=text)
    arguments = {str(name): value for name, value in call.items() if name != "tool"}
    return Action(raw_text=text, action_type=call["tool"], arguments=arguments)


def canonical(text: str, free: Collection[str] = ()) -> str:
    """The text with spacing, key order and Unicode form evened out, and the values of free arguments
    (those whose value does not matter) blanked, so that equal strings mean equal actions."""
    action = parse_action(text)
    if not action.action_type:
        return " ".join(unicodedata.normalize("NFC", text).split())
    arguments: dict[str, Any] = {name: "*" if name in free else value for name, value in action.arguments.items()}
    body = json.dumps(
        {"tool": action.action_type, **arguments}, sort_keys=True, ensure_ascii=False, separators=(",", ":")
    )
    return unicodedata.normalize("NFC", body)
