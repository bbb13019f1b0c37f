"""Fields of records: typed access, reasons of bad records, and the outcome claimed by a log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from r2v.data.episode import Tokens
from r2v.wire.exchange import TokenUsage

_TYPES: dict[type, str] = {list: "a list", dict: "an object", str: "text"}
_WORDS = {"true": True, "c": True, "false": False, "i": False, "p": False, "n": False}
"""Outcomes as text; inspect's scorers write C, I, P and N: correct, incorrect, partial, no answer."""
_NEARLY = 1 - 1e-6


class BadRecord(ValueError):
    """A record is no trajectory of its format; the message gives the reason."""


def require(value: Any, kind: type, name: str) -> Any:
    """Return the value. Raise BadRecord unless it is of the type."""
    if not isinstance(value, kind):
        got = _TYPES.get(type(value), type(value).__name__)
        raise BadRecord(f"{name} is {got}, {_TYPES[kind]} is asked for")
    return value


def parsed(value: Any, name: str) -> Any:
    """Return the value of a column, which may be JSON in a string. Raise BadRecord for any other string."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{name}: text that is no JSON ({error})") from None


def first_text(record: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the first of these fields with text or a whole number, as text, or None."""
    values = (str(value) if type(value) is int else value for value in map(record.get, names))
    return next((value for value in values if isinstance(value, str) and value.strip()), None)


def amount(value: Any) -> float:
    """Return the value if it is a number of dollars or tokens, else 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e15 else 0.0


def tokens_of(usage: TokenUsage | None) -> Tokens:
    """Return the tokens of a model's reply by its usage."""
    counts = (usage or TokenUsage()).counts(0, 0)
    return Tokens(llm_in=counts.input, llm_out=counts.output, llm_cached=counts.cached)


def claimed_outcome(record: Mapping[str, Any]) -> bool | None:
    """Return the outcome stated by a record in the usual fields of data sets, or None."""
    stated = (outcome_of(record.get(name), name) for name in ("success", "resolved", "reward", "score"))
    return next((outcome for outcome in stated if outcome is not None), None)


def common_outcome(outcomes: Iterable[bool | None]) -> bool | None:
    """Return the common outcome of several scores; None if they differ or state none."""
    stated = {outcome for outcome in outcomes if outcome is not None}
    return stated.pop() if len(stated) == 1 else None


def outcome_of(value: Any, name: str) -> bool | None:
    """Return an outcome from a log's value: true or false, a number (success from 1 on), or a word; None for others.
    Raise BadRecord for an unknown word."""
    if isinstance(value, str):
        if (word := value.strip().lower()) in _WORDS:
            return _WORDS[word]
        try:
            value = float(word)
        except ValueError:
            raise BadRecord(f"{name} {value!r:.40}: no outcome; allowed: true, false, a number, C, I") from None
    if isinstance(value, bool):
        return value
    return value >= _NEARLY if isinstance(value, (int, float)) else None
