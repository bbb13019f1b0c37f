"""Sources of trajectories: files, folders of them and hub data sets, record by record with the place of each.

    for place, record in read_source("chat.jsonl"): ...     # ("chat.jsonl:1", {...})

A line or a row that cannot be read is given as the `BadRecord` that says why, so that one bad line hides no other.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from r2v.constraints import shown
from r2v.data.interchange.atif import from_atif, is_atif
from r2v.data.interchange.conversation import BadRecord, Conversation
from r2v.data.interchange.messages import from_messages, is_messages, rows_of
from r2v.data.interchange.sweagent import from_sweagent, is_sweagent
from r2v.data.schema import parse_json
from r2v.errors import InputError
from r2v.storage.compression import lines_of

Record = tuple[str, Any]
"""(place, record), or (place, BadRecord)."""

FORMATS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Conversation]]] = {
    "atif": (is_atif, from_atif),
    "sweagent": (is_sweagent, from_sweagent),
    "messages": (is_messages, from_messages),
}
"""Name -> (does a record look like it, read a record), in the order in which they are tried."""
SUFFIXES = (".jsonl", ".ndjson", ".json", ".traj", ".parquet", ".zst")
_DATASET = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def recognise(record: Any) -> str:
    """The name of a record's format. Raises BadRecord where it looks like none."""
    for name, (looks_like, _) in FORMATS.items():
        if looks_like(record):
            return name
    fields = ", ".join(map(shown, list(record)[:8])) if isinstance(record, dict) else type(record).__name__
    raise BadRecord(f"no trajectory of a known format ({', '.join(FORMATS)}): it has {fields}")


def read_source(source: str, *, split: str = "train") -> Iterator[Record]:
    """The records of a file, of every file below a folder in the order of their names, or of a hub data set's split.

    Raises InputError where there is no such source, or nothing in it that could be one.
    """
    path = Path(source)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise InputError(f"{source}: holds no file of {', '.join(SUFFIXES)}")
        for file in files:
            yield from read_file(file)
    elif path.is_file():
        yield from read_file(path)
    elif path.exists() or path.is_symlink():
        raise InputError(f"{source}: neither a file nor a folder; name one")
    elif _DATASET.fullmatch(source):
        yield from _hub(source, split)
    else:
        raise InputError(f"{source}: no such file or folder, and no name of a hub data set (owner/name)")


def read_file(path: Path) -> Iterator[Record]:
    """The records of a file, by its suffix; without a known one it is read as lines of JSON."""
    if path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.suffix in (".json", ".traj"):
        yield from _whole(path)
    else:
        yield from _lines(path)


def _lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(lines_of(path), start=1):
        if text := line.removeprefix(BOM_UTF8).strip():
            yield f"{path}:{number}", _json(text)


def _whole(path: Path) -> Iterator[Record]:
    value = _json(path.read_bytes().removeprefix(BOM_UTF8))
    records = [value] if isinstance(value, BadRecord) else list(rows_of(value))
    for number, record in enumerate(records):
        yield (str(path) if len(records) == 1 else f"{path}[{number}]"), record


def _json(text: bytes) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        return BadRecord(f"no JSON ({' '.join(str(error).split())[:120]})")


def _parquet(path: Path) -> Iterator[Record]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=64):
                for record in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", without_nulls(record)
    except (ArrowException, OSError) as error:
        raise InputError(
            f"{path}: row {number + 1}: not a parquet file ({' '.join(str(error).split())[:160]})"
        ) from error


def _hub(name: str, split: str) -> Iterator[Record]:
    from datasets import load_dataset

    try:
        table = load_dataset(name, split=split)
    except Exception as error:  # the library raises many kinds, its own and others'
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise InputError(
            f"{name}: no such file or folder here, and the hub data set cannot be loaded ({reason}); with "
            "HF_HUB_OFFLINE=1 it has to be in the cache already"
        ) from error
    for number, record in enumerate(table, start=1):
        yield f"{name}[{split}]:{number}", without_nulls(record)


def without_nulls(value: Any) -> Any:
    """A row without the fields that are null: columns give every record the fields of all."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
