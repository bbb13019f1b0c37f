"""Schema validation: conversion of plain JSON values to a dataclass with strict types.

    from_dict(Setup, parse_json(text))      # ValueError: seeds[1]: expected a whole number, got null

A file may come from an untrusted source or a failing disk. Nothing is converted or guessed: a number as text, a `null`
for a field that does not allow it, NaN and endless nesting are refused with the path of the value.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from r2v.errors import InputError
from r2v.wire.message import Message, from_json

T = TypeVar("T")
Reader = Callable[[Any], Any]

_LARGEST = 1 << 63
"""Exclusive bound of whole numbers, as in numpy and in every file that R2V writes."""
_SHOWN = 40


class SchemaError(ValueError):
    """A value that its field does not allow, at `path` from the record."""

    def __init__(self, expected: str, value: Any, path: str = "") -> None:
        super().__init__(expected, path)
        self.expected, self.value, self.path = expected, value, path

    def below(self, step: str) -> SchemaError:
        """Return this error with its path prefixed by one level."""
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path.lstrip('.') or 'the record'}: expected {self.expected}, got {_shown(self.value)}"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str)):
        text = ascii(value) if isinstance(value, str) else json.dumps(value) if _small(value) else "a huge number"
        return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else type(value).__name__


def _small(value: float | None) -> bool:
    return value is None or not isinstance(value, int) or abs(value) < 10**_SHOWN


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raise ValueError for other text, NaN, infinities and endless nesting."""
    try:
        return json.loads(text, parse_constant=_refused)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def from_dict(cls: type[T], record: Any) -> T:
    """Return the record as a `cls`; inverse of `to_dict`. Unknown fields are kept in `extra`, if the class has it, with
    a warning, so that an older R2V loses nothing of newer data.

    Raise SchemaError, a ValueError, if a field is missing, of another type, or unknown and cannot be kept.
    """
    hint: Any = cls
    instance: T = _reader(hint)(record)
    return instance


@cache
def fields_of(cls: type[Any]) -> tuple[dict[str, Reader], frozenset[str]]:
    """Return field -> reader of a dataclass, and the names of its fields without default."""
    hints = typing.get_type_hints(cls)
    readers = {item.name: _reader(hints[item.name]) for item in dataclasses.fields(cls)}
    missing = dataclasses.MISSING
    required = (f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing)
    return readers, frozenset(required)


@cache
def _reader(hint: Any) -> Reader:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _either(tuple(_reader(option) for option in args if option is not type(None)), type(None) in args)
    if origin is typing.Literal:
        return _one_of(args)
    if origin in (tuple, list):
        return _items(_reader(args[0]), origin, None if args[-1] is Ellipsis or origin is list else len(args))
    if origin is dict:
        return _values(_reader(args[1]))
    if hint not in _PLAIN and isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record(hint)
    return _PLAIN.get(hint, _anything)


def _anything(value: Any) -> Any:
    return value


def _exactly(kind: type, words: str) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise SchemaError(words, value)
        return value

    return read


_mapping = _exactly(dict, "an object")


def _whole(value: Any) -> Any:
    if type(value) is not int or not -_LARGEST <= value < _LARGEST:
        raise SchemaError("a whole number", value)
    return value


def _number(value: Any) -> Any:
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int and -_LARGEST <= value < _LARGEST:
        return value
    raise SchemaError("a finite number", value)


def _message(value: Any) -> Any:
    fields = _mapping(value)
    if type(fields.get("content")) not in (str, list):
        raise SchemaError("text or a list of parts", fields.get("content"), ".content")
    try:
        return from_json(fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SchemaError("a message", value) from None


_PLAIN: dict[Any, Reader] = {
    str: _exactly(str, "text"),
    bool: _exactly(bool, "true or false"),
    int: _whole,
    float: _number,
    dict: _mapping,
    Message: _message,
}


def _either(options: tuple[Reader, ...], optional: bool) -> Reader:
    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        for option in options[:-1]:
            try:
                return option(value)
            except SchemaError:
                continue
        return options[-1](value)

    return read


def _one_of(words: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) in (str, int, bool) and value in words:
            return value
        raise SchemaError(f"one of {', '.join(map(str, words))}", value)

    return read


def _items(reader: Reader, kind: type, length: int | None) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list or (length is not None and len(value) != length):
            raise SchemaError("a list" if length is None else f"a list of {length}", value)
        items = []
        for index, item in enumerate(value):
            try:
                items.append(reader(item))
            except SchemaError as error:
                raise error.below(f"[{index}]") from None
        return kind(items)

    return read


def _values(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        values = {}
        for name, item in _mapping(value).items():
            try:
                values[name] = reader(item)
            except SchemaError as error:
                raise error.below(f".{_key(name)}") from None
        return values

    return read


def _key(name: str) -> str:
    return name if name.isidentifier() and len(name) <= _SHOWN else _shown(name)


def _record(cls: Any) -> Reader:
    def read(value: Any) -> Any:
        readers, required = fields_of(cls)
        fields: dict[str, Any] = {}
        unknown = {name: item for name, item in _mapping(value).items() if name not in readers}
        if unknown and "extra" not in readers:
            name = min(unknown)
            raise SchemaError(f"no field {_key(name)} in {cls.__name__}", unknown[name], f".{_key(name)}")
        for name, item in value.items():
            if name in unknown:
                continue
            try:
                fields[name] = readers[name](item)
            except SchemaError as error:
                raise error.below(f".{name}") from None
        if lacking := required - fields.keys():
            raise SchemaError(f"field {min(lacking)} of {cls.__name__}", None, f".{min(lacking)}")
        if unknown:
            names = ", ".join(map(_key, sorted(unknown)))
            warnings.warn(f"{cls.__name__}: unknown fields kept in extra: {names}", stacklevel=2)
            fields["extra"] = {**fields.get("extra", {}), **unknown}
        return cls(**fields)

    return read


def read_records(path: Path, cls: type[T]) -> list[T]:
    """Return the records of a file, in order. Raise InputError if it is missing, or with the number of a bad line."""
    if not path.exists():
        raise InputError(f"{path}: missing; run the stage that makes it first")
    records = []
    with path.open() as file:
        for number, line in enumerate(file, start=1):
            try:
                records.append(from_dict(cls, parse_json(line)))
            except (TypeError, ValueError, AttributeError) as error:
                raise InputError(f"{path}:{number}: not a {cls.__name__} ({error})") from error
    return records
