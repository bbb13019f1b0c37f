"""Plain values exchanged between an answer and its judge, and their JSON encoding."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

PACK: dict[type, tuple[str, Callable[[Any], Any]]] = {
    bytes: ("bytes", bytes.hex),
    bytearray: ("bytearray", lambda value: bytes(value).hex()),
    complex: ("complex", lambda value: [value.real, value.imag]),
    range: ("range", lambda value: [value.start, value.stop, value.step]),
    Decimal: ("Decimal", str),
    Fraction: ("Fraction", lambda value: [value.numerator, value.denominator]),
    datetime: ("datetime", lambda value: value.isoformat()),
    date: ("date", lambda value: value.isoformat()),
    time: ("time", lambda value: value.isoformat()),
    timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
}
"""Type -> (kind in JSON, encoder of its content)."""
UNPACK: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(_text(value), 16),
    "bytes": lambda value: bytes.fromhex(_text(value)),
    "bytearray": lambda value: bytearray.fromhex(_text(value)),
    "complex": lambda value: complex(*value),
    "range": lambda value: range(*value),
    "Decimal": lambda value: Decimal(_text(value)),
    "Fraction": lambda value: Fraction(*value),
    "datetime": lambda value: datetime.fromisoformat(_text(value)),
    "date": lambda value: date.fromisoformat(_text(value)),
    "time": lambda value: time.fromisoformat(_text(value)),
    "timedelta": lambda value: timedelta(*value),
}
"""Kind -> decoder of its content, which raises TypeError, ValueError and the like for invalid content."""
CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "iterator": iter,
}
"""Kind -> constructor from a list of items."""
HOLDERS = {tuple: "tuple", set: "set", frozenset: "frozenset", deque: "deque"}
"""Container type -> kind. Subclasses are sent as their base type."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def plain(value: float | str) -> float | str:
    """Return a number or text as the built-in type, for a value of a subclass."""
    return str.__str__(value) if isinstance(value, str) else float.__float__(value)
