"""Lies in a results folder: every leaf of every schema is altered, the rest made consistent, and the folder verified.

`--whole-suites` alters every leaf in every way; otherwise a draw of them is tested. A lie is named, or its leaf is
listed in docs/trust.md with the reason why it cannot be proved; an alteration without a change of meaning is no lie. A
listed leaf may hold another value that an honest record could hold, and nothing else: another type, a value out of its
range or a leaf that is not there is named wherever it is.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from r2v.config import identity, load
from r2v.data.episode import parse_episode
from r2v.data.schema import from_dict
from r2v.errors import UsageError
from r2v.pipeline.inputs import flat
from tests.trust import drawn
from tests.trust.alter import LEAVES, LeafPath, altered, get, swapped
from tests.trust.tampering import (
    KINDS,
    RECORDS,
    copy_results,
    is_believable,
    is_listed,
    make_consistent,
    numbers_beyond,
    places,
    plausible,
    read,
    rehash,
    verify,
    write,
)

OPERATIONS = ("delete", "type", "range", "null", "nan", "huge", "lie", "swap")
DRAWN = {"episodes": 2, "setup": 2}
"""Leaves of a kind that are altered in a way without --whole-suites; 1 of the others. Half of the ways are drawn."""


@pytest.fixture(scope="module")
def leaf_places(small_results: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return kind -> leaf pattern -> (file below the folder, record, path)."""
    results = copy_results(small_results, tmp_path_factory.mktemp("leaves") / "results")
    return {
        kind: {
            pattern: (path.relative_to(results), index, leaf)
            for pattern, (path, index, leaf) in places(results, kind).items()
        }
        for kind in KINDS
    }


def change(operation: str, records: list[Any], index: int, leaf: LeafPath) -> Any:
    """Return the record with its leaf altered. Raises LookupError if the operation does not apply to it."""
    record = records[index]
    if operation == "swap":
        return swapped(records, index, leaf)
    value = get(record, leaf)
    if operation in ("nan", "huge"):
        return altered(record, leaf, dict(numbers_beyond(value))[operation])
    new = plausible if operation == "lie" else LEAVES[operation]
    return altered(record, leaf, new)


def says_the_same(kind: str, path: Path, before: Any, after: Any) -> bool:
    """True if an alteration changed nothing in the file's meaning: a default that was left out, or a runtime key."""
    if before == after and repr(before) == repr(after):
        return True
    try:
        if kind in ("episodes", "plays", "branches"):
            return repr(parse_episode(json.dumps(before))) == repr(parse_episode(json.dumps(after)))
        if kind in ("setup", "gains", "attempt", "states"):
            return repr(from_dict(RECORDS[kind], before)) == repr(from_dict(RECORDS[kind], after))
        if kind == "config":
            return bool(identity(load(path)) == identity(_config(path, before)))
    except Exception:
        return False
    return False


def changes_what_is_listed(path: Path, before: Any) -> bool:
    """True if a configuration differs from the former one in listed keys alone, as one without a whole section may."""
    try:
        now, was = flat(identity(load(path))), flat(identity(_config(path, before)))
    except UsageError:
        return False
    return all(is_listed("config", key) for key in now.keys() | was.keys() if now.get(key) != was.get(key))


def _config(path: Path, record: Any) -> Any:
    other = path.with_name("before.yaml")
    write_new(other, record)
    try:
        return load(other)
    finally:
        other.unlink()


def write_new(path: Path, record: Any) -> None:
    path.touch()
    write(path, [record])


def names_it(kind: str, pattern: str, name: Path, line: str) -> bool:
    """True if the line names the file, its method, or the field."""
    words = {word for word in pattern.split(".") if word != "*"} | {kind, name.name, name.name.partition(".")[0]}
    words |= {"threshold"} if "tau" in words else set()
    return any(word in line for word in words)


def _shown(record: Any, leaf: LeafPath) -> str:
    try:
        return f"{get(record, leaf)!r:.80}"
    except LookupError:
        return "nothing"


@pytest.mark.parametrize(("kind", "operation"), drawn(list(itertools.product(KINDS, OPERATIONS)), 32, "tampers"))
def test_every_leaf_altered_is_named_or_listed(
    kind: str, operation: str, leaf_places: dict[str, dict[str, Any]], small_results: Path, tmp_path: Path
) -> None:
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for pattern in drawn(sorted(leaf_places[kind]), DRAWN.get(kind, 1), f"tampers {kind} {operation}"):
        name, index, leaf = leaf_places[kind][pattern]
        results = copy_results(small_results, tmp_path / "results")
        path = results / name
        records = read(path)
        try:
            new = change(operation, records, index, leaf)
        except (LookupError, TypeError):
            continue
        before = records[index]
        write(path, [*records[:index], new, *records[index + 1 :]])
        if says_the_same(kind, path, before, new):
            counts["same"] += 1
            continue
        if kind == "tables":
            rehash(results)
        elif kind == "artifact":
            pass
        else:
            make_consistent(results)
        code, out, err = verify(results, *(["--all"] if kind == "plays" else []))
        listed = is_listed(kind, pattern) or (kind == "config" and changes_what_is_listed(path, before))
        may_pass = listed and is_believable(operation, kind, leaf, get(before, leaf))
        counts["named" if code else "listed" if may_pass else "silent"] += 1
        if "Traceback" in err or code not in (0, 3) or (code and err.strip().count("\n") > 0):
            wrong.append(f"{pattern}: exit {code}: {err[-300:]}")
        elif code == 0 and not may_pass:
            wrong.append(f"{pattern}: silent: {get(before, leaf)!r:.80} became {_shown(new, leaf)}")
        elif code == 3 and not names_it(kind, pattern, name, err):
            wrong.append(f"{pattern}: not named: {err[:300]}")
    print(f"{kind} {operation}: {dict(counts)}", *wrong, sep="\n", flush=True)
    assert not wrong, "\n".join(wrong)
