"""Alterations of a file: damage to its bytes; and for each leaf of a record a deletion, another type, a value out of
range, another record's value. Altered files are replaced, so that hard-linked copies of one run stay independent."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from r2v.storage.compression import LINES, lines_of
from r2v.storage.files import write_lines

LeafPath = tuple[str | int, ...]


def hard_copy(source: Path, target: Path) -> Path:
    """Copy a project by hard links: cheap, and safe as long as no file is written in place."""
    shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
    return target


def _link_or_copy(source: str, target: str) -> None:
    """Make a hard link; copy files that a run of data appends to in place."""
    (shutil.copy2 if "/data/" in source else os.link)(source, target)


def rewrite(path: Path, content: bytes) -> None:
    """Replace a file by a new one: hard links to the old one are unaffected."""
    path.unlink()
    path.write_bytes(content)


def _flipped(content: bytes) -> bytes:
    """Return the content with one bit flipped: at a decimal digit past the middle if there is one, which causes no
    syntax error."""
    digits = [index for index, byte in enumerate(content) if 0x30 <= byte <= 0x39]
    later = [index for index in digits if index > len(content) // 2] or digits or [len(content) // 2]
    return content[: later[0]] + bytes([content[later[0]] ^ 1]) + content[later[0] + 1 :]


def _in_place(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: rewrite(path, change(path.read_bytes()))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "stray").write_text("a folder where a file was\n")


BYTES: Mapping[str, Callable[[Path], None]] = {
    "bit flip": _in_place(_flipped),
    "truncated": _in_place(lambda content: content[: len(content) // 2]),
    "emptied": _in_place(lambda content: b""),
    "deleted": Path.unlink,
    "folder": _folder,
    "garbage": _in_place(lambda content: bytes((31 * index + 7) % 256 for index in range(len(content)))),
    "another shape": _in_place(lambda content: b'[{"schema_version": "99", "runs": null}]\n'),
    "null": _in_place(lambda content: b"null\n"),
}
"""Damage by name; each alters the file at a path. None parses any format, so they fit every kind."""


def _instead_of_link(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


def _real_folder(path: Path) -> None:
    path.mkdir()
    (path / "stray").write_text("a real folder\n")


LINKS: Mapping[str, Callable[[Path], None]] = {
    "deleted": Path.unlink,
    "dangling": _instead_of_link(lambda path: path.symlink_to("nowhere")),
    "itself": _instead_of_link(lambda path: path.symlink_to(path.name)),
    "another": _instead_of_link(lambda path: path.symlink_to(path.parent)),
    "file": _instead_of_link(lambda path: path.write_text("a file\n")),
    "folder": _instead_of_link(_real_folder),
}
"""Damage of symbolic links, by name."""


def leaves(value: Any, path: LeafPath = ()) -> Iterator[LeafPath]:
    """Yield the path of every leaf of a JSON value, and of every object and list in it except the value itself."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def get(value: Any, path: LeafPath) -> Any:
    """Return the value at a path. Raises LookupError if there is none."""
    for key in path:
        value = value[key]
    return value


def altered(value: Any, path: LeafPath, change: Callable[[Any], Any]) -> Any:
    """Return a copy with `change` applied to the leaf at the path; the leaf is deleted if that returns DELETED."""
    result = copy.deepcopy(value)
    parent, new = get(result, path[:-1]), change(get(result, path))
    if new is DELETED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return result


DELETED = object()


def _other_type(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes"
    if isinstance(value, (int, float)):
        return str(value)
    return [value] if value is None or isinstance(value, str) else 7  # where null is allowed, a number may be too


def _out_of_range(value: Any) -> Any:
    """Return a value of the same type that no honest record holds."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return -1e9 if isinstance(value, float) else -(10**9)
    if isinstance(value, str):
        return "../../\x1b[31m" + value[::-1]
    return type(value)() if value is not None else 0


LEAVES: Mapping[str, Callable[[Any], Any]] = {
    "delete": lambda value: DELETED,
    "type": _other_type,
    "range": _out_of_range,
    "null": lambda value: 0 if value is None else None,
}
"""Alterations of one leaf; `swapped` is the fifth, for kinds of several records."""


def swapped(records: list[Any], index: int, path: LeafPath) -> Any:
    """Return the record with its leaf at `path` taken from another record, the first whose value differs. Raises
    LookupError if no other record has a different one."""
    mine = get(records[index], path)
    for other in records[index + 1 :] + records[:index]:
        try:
            theirs = get(other, path)
        except (LookupError, TypeError):
            continue
        if theirs != mine:
            return altered(records[index], path, partial(_instead, theirs))
    raise LookupError(f"no record differs at {path}")


def _instead(theirs: Any, mine: Any) -> Any:
    return theirs


def text_of(path: Path) -> bytes:
    """Return the text of a file of JSON Lines, packed or not."""
    return b"".join(lines_of(path))


def rewrite_text(path: Path, text: bytes) -> None:
    """Write a text into a new file; the inverse of `text_of`."""
    write_lines(path, text.decode().splitlines())


def read_records(path: Path) -> list[Any]:
    """Return the records of a .json file (one) or of a .jsonl file, packed or not."""
    if path.name.endswith(LINES):
        return [json.loads(line) for line in lines_of(path)]
    return [json.loads(path.read_text())]


def write_records(path: Path, records: list[Any]) -> None:
    """Write records into a new file; the inverse of `read_records`. NaN is written as Python writes it."""
    if path.name.endswith(LINES):
        write_lines(path, (json.dumps(record, ensure_ascii=False, separators=(",", ":")) for record in records))
    else:
        rewrite(path, (json.dumps(records[0], ensure_ascii=False, indent=2) + "\n").encode())
