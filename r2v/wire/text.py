"""Text that every server, file and tokenizer takes: no half of a surrogate pair, no NUL, no message of blanks.

sendable("a\\ud83d\\0")      # "a\\ufffd\\ufffd"
"""

from __future__ import annotations

import re
from typing import Any

_UNSENDABLE = re.compile("[\\ud800-\\udfff\\x00]")
_PAIR = re.compile("[\\ud800-\\udbff][\\udc00-\\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
STAND_IN = "(nothing)"
"""Stands for a message without a visible character, which providers refuse."""


def sendable(text: str) -> str:
    """The text with the halves of surrogate pairs joined, and lone ones and NUL replaced."""
    if text.isascii() and "\0" not in text or not _UNSENDABLE.search(text):
        return text
    return _UNSENDABLE.sub(REPLACEMENT, _PAIR.sub(lambda match: _join(match[0]), text))


def _join(pair: str) -> str:
    return pair.encode("utf-16", "surrogatepass").decode("utf-16")


def sendable_json(value: Any) -> Any:
    """A JSON value with all its texts, names of fields too, made sendable."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, dict):
        return {sendable(name): sendable_json(item) for name, item in value.items()}
    return [sendable_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def visible(text: str) -> str:
    """The text as it can be sent; `STAND_IN` for one without a visible character."""
    return sendable(text) if text.strip() else STAND_IN
