"""Dataclass records in JSON Lines files, one per line."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from r2v.data.schema import from_dict, parse_json
from r2v.errors import InputError

T = TypeVar("T")


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
