"""Garbage collection: artifacts that nothing refers to, and the checkpoints of finished ones.

    for item in garbage(Path()):          # folder, bytes and reason
        remove(item)

An artifact is kept where a published link leads to it, a configuration, a chain or an experiment names it, a living
process works on it, or it names collected runs; so are its inputs and the artifacts that it made (ablations).
Collected runs are data and never garbage. Replies that a provider was paid for (`.provider*`) stay when their artifact
goes, and so does their ledger, whose entries keep no artifact. Unfinished attempts hold work: they go on request only.
An attempt's part of the episode cache goes with it. Snapshots of submitted code go when no chain names them, a month
after they were made. A link, or a folder without R2V's marker, is kept and logged (`r2v.storage.removal`).

A finished stage keeps its checkpoints until then: `checkpoint-latest` is a documented path of a training's result, and
`--resume` on it names the result.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from r2v.errors import InputError, LeaseConflict
from r2v.log import logger
from r2v.pipeline.jobs import JOBS
from r2v.storage.artifact import ATTEMPT, JOURNAL, clear, places_elsewhere
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, SNAPSHOT_RECORD, read_artifact_manifest
from r2v.storage.integrity import CONFIGURATION
from r2v.storage.lease import holder, lease
from r2v.storage.paths import ARTIFACTS, CHAINS, CONFIGS, EPISODES, REPLIES, ROOMS, SNAPSHOTS
from r2v.storage.removal import (
    ATTEMPT_MARKER,
    ATTEMPT_PART,
    PLAYS_MARKER,
    SNAPSHOT_MARKER,
    Marker,
    NotOurs,
    is_own,
    remove_own,
    require_own,
)

_NAME = re.compile(rf"\b((?:{'|'.join(row.name for row in JOBS)})-[0-9a-f]{{16}})(?![0-9a-z])")
_POINTING = (".json", ".yaml", ".yml")
"""Suffixes of files outside the store that may name an artifact: configurations, chains, records of experiments."""
_DAYS = 30
"""Days that a snapshot is kept when no chain names it."""
_LEFTOVER = ("checkpoint-*", "tmp", "tmp-*", "replay")


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """A removable folder: a whole artifact, or with `leftovers` the checkpoints of a finished one."""

    folder: Path
    size: int
    """Bytes that are freed."""
    why: str
    leftovers: bool = False
    marker: Marker = ATTEMPT_MARKER
    """Proof that R2V made it."""


def garbage(root: Path = Path(), *, unfinished: bool = False) -> list[Garbage]:
    """Return the removable folders by name, and remove nothing. `unfinished`: unreferenced unfinished attempts too."""
    store = root / ARTIFACTS
    attempts = {path.name: path for path in sorted(store.glob("*-*")) if _NAME.fullmatch(path.name) and path.is_dir()}
    live = _reached(_roots(root, attempts), attempts)
    items = []
    for name, folder in attempts.items():
        done = _finished(folder)
        if name in live and done and is_own(folder, ATTEMPT_MARKER) and (size := sum(map(_size, _leftovers(folder)))):
            items.append(Garbage(folder=folder, size=size, why="checkpoints of a finished stage", leftovers=True))
        elif name not in live and (done or unfinished) and any(_unpaid(folder)) and _may_go(folder, ATTEMPT_MARKER):
            plays = root / EPISODES / name
            size = sum(map(_size, _unpaid(folder))) + (_size(plays) if is_own(plays, PLAYS_MARKER) else 0)
            why = "nothing points at it" if done else "never finished, and nothing points at it"
            items.append(Garbage(folder=folder, size=size, why=why))
    orphans = (path for path in sorted((root / EPISODES).glob("*-*")) if _NAME.fullmatch(path.name) and path.is_dir())
    items += [
        Garbage(folder=path, size=_size(path), why="plays of an attempt that is gone", marker=PLAYS_MARKER)
        for path in orphans
        if path.name not in attempts and any(path.iterdir()) and _may_go(path, PLAYS_MARKER)
    ]
    return items + [
        Garbage(
            folder=path,
            size=_size(path),
            why=f"no chain runs this snapshot, and it is older than {_DAYS} days",
            marker=SNAPSHOT_MARKER,
        )
        for path in _idle_snapshots(root)
        if _may_go(path, SNAPSHOT_MARKER)
    ]


def _may_go(path: Path, marker: Marker) -> bool:
    """True if R2V made the folder; else log why it is kept."""
    try:
        require_own(path, marker)
    except NotOurs as error:
        logger.warning("folder kept: error=%s", error)
        return False
    return True


def _idle_snapshots(root: Path) -> Iterator[Path]:
    """Yield old snapshots that no chain names: a job submitted before its chain took another snapshot may still run."""
    snapshots = [path for path in sorted((root / SNAPSHOTS).glob("*")) if (path / SNAPSHOT_RECORD).is_file()]
    texts = [path.read_text(errors="replace") for path in (root / CHAINS).glob("*/chain.json")] if snapshots else []
    named = {id_ for text in texts for id_ in re.findall(r'"snapshot":\s*"(\w+)"', text)}
    for path in snapshots:
        if path.name not in named and time.time() - (path / SNAPSHOT_RECORD).stat().st_mtime > _DAYS * 86400:
            yield path


def remove(item: Garbage) -> bool:
    """Remove the item under its lease; return False where another process holds it."""
    try:
        with lease(item.folder.with_name(f"{item.folder.name}.lease")):
            if item.leftovers:
                for path in list(_leftovers(item.folder)):
                    remove_own(path, ATTEMPT_PART)
            elif item.marker == ATTEMPT_MARKER:
                plays = item.folder.parents[1] / EPISODES.name / item.folder.name
                if os.path.lexists(plays) and _may_go(plays, PLAYS_MARKER):
                    remove_own(plays, PLAYS_MARKER)
                clear(item.folder)
            else:
                remove_own(item.folder, item.marker)
    except (LeaseConflict, NotOurs) as error:
        logger.warning("folder kept: folder=%s error=%s", item.folder, error)
        return False
    return True


def _roots(root: Path, attempts: dict[str, Path]) -> set[str]:
    """Return the names of the attempts that a file outside the store refers to, or a process holds."""
    store = (root / ARTIFACTS).resolve()
    names = set[str]()
    for path in (path for room in (CONFIGS, *ROOMS) for path in _outside(root / room)):
        if path.is_symlink():
            target = Path(path.parent.resolve(), path.readlink()).resolve()
            if target.is_relative_to(store) and target != store:
                names.add(target.relative_to(store).parts[0])
        elif path.suffix in _POINTING and path.is_file():
            names |= _names_in(path)
    runs = {row.name for row in JOBS if row.place is None}
    names |= {name for name in attempts if name.rpartition("-")[0] in runs}
    for name, folder in attempts.items():
        elsewhere = (link for link in places_elsewhere(folder) if link.is_symlink())
        held = holder(folder.with_name(f"{folder.name}.lease")) is not None
        if held or any(link.resolve() == folder.resolve() for link in elsewhere):
            names.add(name)
    return names


def _outside(room: Path) -> Iterator[Path]:
    """Yield the paths below a folder, without the store, plays, journals, their ledger and linked episode folders."""
    for path in sorted(room.iterdir()) if room.is_dir() else ():
        if path.name in (ARTIFACTS.name, EPISODES.name, REPLIES.name, SNAPSHOTS.name, JOURNAL):
            continue
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _outside(path)


def _names_in(path: Path) -> set[str]:
    """Return the attempts that a file names; none where it cannot be read."""
    with suppress(OSError):
        return set(_NAME.findall(path.read_text(errors="replace")))
    return set()


def _reached(names: set[str], attempts: dict[str, Path]) -> set[str]:
    """Return these attempts with their inputs and all that they name, transitively."""
    reached, todo = set[str](), sorted(names & attempts.keys())
    while todo:
        name = todo.pop()
        if name in reached:
            continue
        reached.add(name)
        for file in (ATTEMPT, ARTIFACT_MANIFEST, CONFIGURATION):
            todo += sorted(_names_in(attempts[name] / file) & attempts.keys())
    return reached


def _finished(folder: Path) -> bool:
    try:
        read_artifact_manifest(folder)
    except InputError as error:
        if (folder / ARTIFACT_MANIFEST).exists():
            logger.warning("artifact kept: error=%s", error)
        return False
    return True


def _leftovers(folder: Path) -> Iterator[Path]:
    """Yield checkpoints and drafts, of folds too, that hold no content of the artifact."""
    content = read_artifact_manifest(folder).files
    for pattern in _LEFTOVER:
        for path in sorted(folder.rglob(pattern)):
            relative = path.relative_to(folder)
            if relative.parts[0].startswith(JOURNAL) or any(
                part.startswith("checkpoint-") for part in relative.parts[:-1]
            ):
                continue
            if not any(name == str(relative) or name.startswith(f"{relative}/") for name in content):
                yield path


def _unpaid(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if not path.name.startswith(JOURNAL))


def _size(path: Path) -> int:
    """Return the bytes below a path, without links."""
    if path.is_symlink():
        return 0
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.lstat().st_size for file in files if file.is_file() and not file.is_symlink())
