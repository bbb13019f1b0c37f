"""Sources of trajectories: files, folders of them and hub data sets, record by record with the place of each.

    for place, record in read_source("chat.jsonl"): ...     # ("chat.jsonl:1", {...})

A line or a row that cannot be read is given as the `BadRecord` that says why, so that one bad line hides no other.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from r2v.data.interchange.fields import BadRecord
from r2v.data.interchange.inspect_logs import is_inspect_log, samples_of
from r2v.data.interchange.messages import is_messages
from r2v.data.interchange.responses import is_items
from r2v.data.interchange.served import is_served, served_sessions
from r2v.data.interchange.sessions import grouped
from r2v.data.schema import parse_json
from r2v.errors import InputError
from r2v.storage.compression import lines_of

Record = tuple[str, Any]
"""(place, record), or (place, BadRecord)."""

SUFFIXES = (".jsonl", ".ndjson", ".json", ".traj", ".eval", ".parquet", ".zst")
_DATASET = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def read_source(source: str, *, split: str = "train") -> Iterator[Record]:
    """The records of a file, of every file below a folder in the order of their names, or of a hub data set's split.

    Raises InputError where there is no such source, or nothing in it that could be one.
    """
    path = Path(source)
    if is_served(path):
        yield from served_sessions(path)
    elif path.is_dir():
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
    elif path.suffix == ".eval":
        yield from _inspect_archive(path)
    elif path.suffix in (".json", ".traj"):
        yield from _whole(path)
    else:
        yield from grouped(_lines(path))


def _lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(lines_of(path), start=1):
        if text := line.removeprefix(BOM_UTF8).strip():
            yield f"{path}:{number}", _json(text)


def _whole(path: Path) -> Iterator[Record]:
    value = _json(path.read_bytes().removeprefix(BOM_UTF8))
    records = [value] if isinstance(value, BadRecord) else list(rows_of(value))
    for number, record in enumerate(records):
        yield (str(path) if len(records) == 1 else f"{path}[{number}]"), record


def rows_of(value: Any) -> Iterator[Any]:
    """Yield the records of a JSON file: of a list of them, or of a log of inspect; anything else is one."""
    if is_inspect_log(value):
        yield from samples_of(value)
    elif isinstance(value, list) and value and not is_messages(value) and not is_items(value):
        yield from value
    else:
        yield value


def _inspect_archive(path: Path) -> Iterator[Record]:
    """The samples of an inspect log in its own form, an archive of JSON files."""
    try:
        with ZipFile(path) as archive:
            head = _json(archive.read("header.json"))
            for name in sorted(archive.namelist()):
                if name.startswith("samples/"):
                    sample = _json(archive.read(name))
                    about = {"eval": head.get("eval")} if isinstance(head, dict) else {}
                    yield f"{path}!{name}", {**sample, **about} if isinstance(sample, dict) else sample
    except (BadZipFile, KeyError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{path}: no log of inspect that this Python unpacks ({reason}); convert it to .json"
        ) from error


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
