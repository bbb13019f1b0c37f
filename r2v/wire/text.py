"""Text that every server, file and tokenizer accepts: no lone surrogate, no NUL, no blank message.

sendable("a\\ud83d\\0")      # "a\\ufffd\\ufffd"
"""

from __future__ import annotations

import re
from typing import Any

_UNSENDABLE = re.compile("[\\ud800-\\udfff\\x00]")
_PAIR = re.compile("[\\ud800-\\udbff][\\udc00-\\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
STAND_IN = "(nothing)"
"""Replacement of a message without a visible character, which providers refuse."""


def sendable(text: str) -> str:
    """Return the text with surrogate pairs joined, and lone surrogates and NUL replaced."""
    if text.isascii() and "\0" not in text or not _UNSENDABLE.search(text):
        return text
    return _UNSENDABLE.sub(REPLACEMENT, _PAIR.sub(lambda match: _join(match[0]), text))


def _join(pair: str) -> str:
    return pair.encode("utf-16", "surrogatepass").decode("utf-16")


def sendable_json(value: Any) -> Any:
    """Return a JSON value with all texts, names of fields included, made sendable."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, dict):
        return {sendable(name): sendable_json(item) for name, item in value.items()}
    return [sendable_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def visible(text: str) -> str:
    """Return the sendable text; `STAND_IN` for one without a visible character."""
    return sendable(text) if text.strip() else STAND_IN
