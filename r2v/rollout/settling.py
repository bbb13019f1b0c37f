"""Settling: once an artifact is finished, its episodes lie in its own files, and the cache keeps no second copy.

    settle(root, "evaluate-0123456789abcdef")

The lines of the artifact's files are found again by their hashes: a play all of whose records are such lines becomes
an entry of `published.json`, any other one a line of `kept.jsonl`. Both are written before the blocks' files go, so a
kill between leaves a play twice, never lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from r2v.errors import LeaseConflict
from r2v.rollout.episode_cache import KEPT, PUBLISHED, published_in
from r2v.rollout.play_lines import header_of, line_hash, lines_from, raw_records
from r2v.storage.compression import LINES, places_of
from r2v.storage.files import write_json, write_lines
from r2v.storage.integrity import hashed
from r2v.storage.lease import lease
from r2v.storage.paths import ARTIFACTS, EPISODES
from r2v.storage.removal import PLAYS_MARKER, is_own

Places = dict[str, tuple[str, int]]
"""Hash of a line -> (file of the artifact, offset)."""


def settle(root: Path, name: str, files: Iterable[str]) -> None:
    """Move the plays of an attempt whose artifact of these files is finished to where they stay. What another process
    is settling, or has settled, is left, and so are plays in a folder that R2V did not mark as its own."""
    folder = root / EPISODES / name
    blocks = [path for path in sorted(folder.glob("*.jsonl")) if path.is_file() and path.name != KEPT]
    if not (blocks and is_own(folder, PLAYS_MARKER)):
        return
    try:
        with lease(root / EPISODES / f"{name}.lease"):
            places = _lines_of(root / ARTIFACTS / name, files)
            published = {key: records for key, records in published_in(folder).items() if _stands(records, places)}
            if not write_lines(folder / KEPT, _kept([folder / KEPT, *blocks], places, published)):
                (folder / KEPT).unlink()
            write_json(folder / PUBLISHED, hashed({"plays": published}))
            for path in blocks:
                path.unlink(missing_ok=True)
    except LeaseConflict:
        return


def _lines_of(artifact: Path, files: Iterable[str]) -> Places:
    return {
        line_hash(line): (name, offset)
        for name in files
        if name.endswith(LINES)
        for offset, line in places_of(artifact / name)
    }


def _kept(paths: Iterable[Path], places: Places, published: dict[str, list[list[Any]]]) -> Iterator[str]:
    """The lines of the plays that lie nowhere else; the others are put into `published`. What a fault of the world
    ended is nobody's but the attempt's own."""
    done = set[str]()
    for path in paths:
        for _, line in lines_from(path) if path.exists() else ():
            header = header_of(line)
            if header is None or header.fault or header.key in done:
                continue
            done.add(header.key)
            if found := _found(raw_records(line), places):
                published[header.key] = found
            elif header.key not in published:
                yield line.decode().rstrip("\n")


def _found(records: list[list[Any]], places: Places) -> list[list[Any]] | None:
    """Where all of a play's records lie; None where one lies nowhere, or there is none."""
    found = []
    for kind, fields in records:
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        content = line_hash(text.encode())
        if content not in places:
            return None
        found.append([kind, *places[content], content])
    return found or None


def _stands(records: list[list[Any]], places: Places) -> bool:
    return all(places.get(content) == (file, offset) for _, file, offset, content in records)
