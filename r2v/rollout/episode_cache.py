"""The episode cache: plays on disk under their content keys, shared by all attempts, stages and experiments.

    cache = EpisodeCache.of(work)
    cache.add("plays", key, [episode])          # append a play as soon as it ends
    cache.read(key, (Episode,))                 # return its records, or None
    publish_plays(root, name, artifact.files)   # after the artifact is finished

A play is an episode, or other records of playing a task (rows of features, candidates of states). Its key
(`Cell.play_keys`) is a hash of everything that determines it, so any stage that needs the same play reuses it: an
evaluation with one more seed plays that seed only. `outputs/.episodes/<job>-<fingerprint>/` holds the plays of one
attempt, and every attempt reads all of these folders:

- `<block>.jsonl` holds one line for each play, which carries a hash of its own:
  {"sha256": of the rest, "key": of the play, "fault": false, "records": [["Episode", {...}]]}
- `published.json` maps the keys of a finished attempt's plays to lines of its artifact's files.
- `kept.jsonl` holds the plays of a finished attempt that are in no file of the artifact.

Every line is verified against its hash when it is read; a line that is torn, altered or foreign is logged and its play
is played again. A play that a fault of the world ended counts within its attempt only. A kill loses the plays in
flight; a power cut also loses the plays of the last 5 seconds.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from r2v.data.episode import to_dict
from r2v.data.schema import from_dict
from r2v.errors import InputError, LeaseConflict
from r2v.log import logger
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST
from r2v.storage.compression import LINES, line_at, places_of
from r2v.storage.files import write_json, write_lines, writing
from r2v.storage.integrity import hashed, read_hashed, set_aside
from r2v.storage.lease import lease
from r2v.storage.paths import ARTIFACTS, EPISODES
from r2v.storage.removal import PLAYS_MARKER, NotOurs, is_own, make_own, remove_own

PUBLISHED, KEPT = "published.json", "kept.jsonl"

_SYNC_SECONDS = 5.0
"""Seconds between two syncs of a file of plays."""
_LINE = re.compile(
    rb'\{"sha256":"([0-9a-f]{64})",("key":"([0-9a-f]{32})","fault":(true|false),"records":.*)\}\n', re.DOTALL
)

RecordLines = list[list[Any]]
"""[kind, file, offset, hash of the line] of each record of a play that is in an artifact's or a run's files."""


@dataclass(frozen=True, kw_only=True)
class BrokenPlay:
    """The only record of a play that a fault of the world ended before anything was measured."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayHeader:
    """The head of a line: the play's key, and whether a fault of the world ended the play."""

    key: str
    fault: bool


@dataclass(frozen=True, slots=True)
class _CachedPlay:
    """A play in a file of the cache."""

    path: Path
    offset: int


@dataclass(frozen=True, slots=True)
class _StoredPlay:
    """A play in the files of an artifact or a run."""

    folder: Path
    lines: RecordLines


class EpisodeCache:
    """The plays of a project as one attempt reads and adds to them.

    store: the folder of all attempts. own: the name of this attempt's folder in it. alone: ignore the plays
    of other attempts. Memory holds the locations of plays, not their records.
    """

    def __init__(self, store: Path, own: str, *, alone: bool = False) -> None:
        self.store, self.folder, self._alone = store, store / own, alone
        self._places: dict[str, _CachedPlay | _StoredPlay] | None = None
        self._read_to: dict[Path, int] = {}
        self._files: dict[str, PlayFile] = {}
        self._warned: set[Path] = set()
        self._published = False

    @classmethod
    def of(cls, work: Work) -> EpisodeCache:
        """Return the cache of a stage's attempt. An attempt that is made anew ignores the plays of
        other attempts."""
        return cls(work.root / EPISODES, work.folder.name, alone=work.anew)

    def make_folder(self) -> None:
        """Make and mark the folder of this attempt's plays. A folder that an earlier version made is used without a
        mark, and is never removed. Raises EnvironmentFault where the disk refuses."""
        with writing(self.folder), suppress(NotOurs):
            make_own(self.folder, PLAYS_MARKER)

    def __contains__(self, key: str) -> bool:
        return key in self._known()

    def count(self) -> int:
        """Return the number of plays in the cache."""
        return len(self._known())

    def read(self, key: str, kinds: Sequence[type] | None) -> list[Any] | None:
        """Return the records of a play as dataclasses of these kinds, or as [kind, fields] if kinds is None;
        None if it is not cached. A damaged play is dropped, logged once for each file, and counts as not played."""
        play = self._known().get(key)
        if play is None:
            return None
        source = play.path if isinstance(play, _CachedPlay) else play.folder
        try:
            raw = _raw(play, key)
            return raw if kinds is None else records_of(raw, kinds)
        except FileNotFoundError:  # another process has published the play, or removed its artifact
            logger.debug("  cached play is gone: file=%s", source)
        except (OSError, ValueError) as error:  # altered after it was scanned
            self._warn(source, error)
        except (TypeError, KeyError, AttributeError, RecursionError) as error:  # fields of another version
            self._warn(source, error)
        del self._known()[key]
        return None

    def add(self, block: str, key: str, records: Sequence[Any]) -> None:
        """Append the records of a play to the file of its block. Raises EnvironmentFault where the disk refuses."""
        file = self._files.setdefault(block, PlayFile(self.folder / f"{block}.jsonl"))
        begin, end = file.append(key, records)
        self._known()[key] = _CachedPlay(file.path, begin)
        if self._read_to.get(file.path, 0) == begin:  # nothing unread before it: no need to scan the own line
            self._read_to[file.path] = end

    def close(self, block: str | None = None) -> None:
        """Sync and close the file of one block, or of all blocks. Raises EnvironmentFault where the disk refuses."""
        for name in [*self._files] if block is None else [block]:
            if name in self._files:
                self._files.pop(name).close()

    def refresh(self) -> None:
        """Read the plays that other processes of this attempt have added or published since the last read."""
        if self._places is not None:
            for path in _play_files(self.folder):
                self._scan(path, shared=False)
            if not self._published and (self.folder / PUBLISHED).exists():
                self._read_published(self.folder)

    def forget(self) -> None:
        """Remove the files of this attempt's plays, once they are stored elsewhere."""
        self.close()
        if is_own(self.folder, PLAYS_MARKER):
            for path in _play_files(self.folder):
                path.unlink(missing_ok=True)

    def forget_faults(self) -> None:
        """Remove the plays that faults of the world ended from this attempt's files, so that they are played again. The
        file of a block that another process leases is not changed."""
        self.close()
        for path in _play_files(self.folder):
            try:
                with lease(lease_of(path)):
                    whole = [(header, line) for _, line in lines_from(path) if (header := header_of(line)) is not None]
                    if any(header.fault for header, _ in whole):
                        write_lines(path, (line.decode().rstrip("\n") for header, line in whole if not header.fault))
            except LeaseConflict:  # its holder appends to the file: rewriting it would lose plays
                continue
        self._places = None  # lines have moved: scan all files again at the next use
        self._read_to.clear()

    def _known(self) -> dict[str, _CachedPlay | _StoredPlay]:
        """Return key -> location of all plays whose lines are whole, scanned at the first call."""
        if self._places is None:
            self._places = {}
            self._read_all()
        return self._places

    def _read_all(self) -> None:
        assert self._places is not None
        for folder in () if self._alone else _folders(self.store):
            if folder != self.folder:
                self._read_published(folder)
                for path in _play_files(folder):
                    self._scan(path, shared=True)
        self._read_published(self.folder)
        before = len(self._places)
        for path in _play_files(self.folder):
            self._scan(path, shared=False)
        if resumed := len(self._places) - before:
            logger.info("  attempt resumed: cached_plays=%d", resumed)

    def _scan(self, path: Path, *, shared: bool) -> None:
        """Scan the whole lines of a file of plays from the end of the last scan. shared: leave out faults."""
        assert self._places is not None
        damaged, offset_read = 0, self._read_to.get(path, 0)
        try:
            for offset, line in lines_from(path, offset_read):
                if not line.endswith(b"\n"):
                    break  # torn by a kill, or another process is still writing it
                offset_read = offset + len(line)
                header = header_of(line)
                damaged += header is None and bool(line.strip())
                if header is not None and not (shared and header.fault):
                    self._places.setdefault(header.key, _CachedPlay(path, offset))
        except OSError as error:  # a file of others may be unreadable; its plays are played again
            self._warn(path, error)
        self._read_to[path] = offset_read
        if damaged:
            logger.warning("  damaged plays in the cache, playing them again: file=%s lines=%d", path, damaged)

    def _read_published(self, folder: Path) -> None:
        self._published |= folder == self.folder and (folder / PUBLISHED).exists()
        self._set_stored(folder.parent.with_name(ARTIFACTS.name) / folder.name, published_in(folder).items())

    def _set_stored(self, folder: Path, plays: Iterable[tuple[str, RecordLines]]) -> None:
        """Set the locations of plays that are in the files of an artifact or a run."""
        assert self._places is not None
        # these replace locations in files of plays, which are removed after publishing
        for key, lines in plays:
            self._places[key] = _StoredPlay(folder, lines)

    def _warn(self, source: Path, error: Exception) -> None:
        """Log a damaged file, once."""
        if source not in self._warned:
            self._warned.add(source)
            logger.warning("  damaged cache file, playing again: file=%s error=%s", source, error)


def lease_of(path: Path) -> Path:
    """Return the path of the lease of a block's file. Its holder plays the block and appends to the file."""
    return path.with_suffix(".lease")


def published_in(folder: Path) -> dict[str, RecordLines]:
    """Return key -> lines of the plays that `published.json` locates in the artifact's files. A damaged file is logged
    and counts as empty."""
    try:
        plays = read_hashed(folder / PUBLISHED)["plays"]
        return dict(plays)
    except FileNotFoundError:  # nothing is published yet
        return {}
    except (InputError, KeyError, TypeError, ValueError) as error:  # altered, or of another version
        logger.warning("  published plays ignored, playing them again: error=%s", error)
        return {}


def forget_finished(root: Path, name: str) -> None:
    """Remove the plays of a finished attempt that is to be made anew; those of an unfinished one stay. A folder that
    R2V did not mark as its own is renamed, so that the attempt does not read its plays."""
    folder = root / EPISODES / name
    if (root / ARTIFACTS / name / ARTIFACT_MANIFEST).exists():
        try:
            remove_own(folder, PLAYS_MARKER)
        except NotOurs as error:
            logger.warning("  folder of plays set aside: renamed=%s error=%s", set_aside(folder).name, error)


def _raw(play: _CachedPlay | _StoredPlay, key: str) -> list[list[Any]]:
    """Return the records of a play as [kind, fields]. Raises OSError, and ValueError where a line is damaged."""
    if isinstance(play, _StoredPlay):
        return [
            [kind, json.loads(_stored_line(play.folder / file, offset, content))]
            for kind, file, offset, content in play.lines
        ]
    line = line_at(play.path, play.offset)
    header = header_of(line)
    if header is None or header.key != key:
        raise ValueError("it is not what was written")
    return raw_records(line)


def _stored_line(path: Path, offset: int, content: str) -> bytes:
    line = line_at(path, offset)
    if line_hash(line) != content:
        raise ValueError(f"{path.name} is not what was published")
    return line


def _folders(store: Path) -> list[Path]:
    return sorted(path for path in store.iterdir() if path.is_dir()) if store.is_dir() else []


def _play_files(folder: Path) -> Iterable[Path]:
    """Yield the files of plays in an attempt's folder. Anything else of such a name is renamed and logged."""
    for path in sorted(folder.glob("*.jsonl")):
        if path.is_file():
            yield path
        else:
            logger.warning("  not a file of plays, set aside: path=%s renamed=%s", path, set_aside(path).name)


# Lines of plays: each is appended when its play ends, and is whole or counts as nothing.


def fault_of(records: Sequence[Any]) -> str | None:
    """Return the reason why a play measured nothing; None where it measured something."""
    first = records[0] if records else None
    fault: str | None = first.reason if isinstance(first, BrokenPlay) else getattr(first, "env_fault", None)
    return fault


def play_line(key: str, records: Sequence[Any]) -> bytes:
    """Return the line of a play, newline included."""
    plain = [[type(record).__name__, to_dict(record)] for record in records]
    body = {"key": key, "fault": fault_of(records) is not None, "records": plain}
    # the hash covers the text between the braces, byte for byte, so that reading needs no canonical JSON
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)[1:-1].encode()
    return b'{"sha256":"%s",%s}\n' % (hashlib.sha256(text).hexdigest().encode(), text)


def header_of(line: bytes) -> PlayHeader | None:
    """Return the header of a line whose hash holds; None for any other line."""
    match = _LINE.fullmatch(line)
    if match is None or hashlib.sha256(match[2]).hexdigest().encode() != match[1]:
        return None
    return PlayHeader(key=match[3].decode(), fault=match[4] == b"true")


def line_hash(line: bytes) -> str:
    """Return the identity of a line of an artifact's file: 32 hex digits of its SHA-256, newline left out."""
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()[:32]


def raw_records(line: bytes) -> list[list[Any]]:
    """Return the records of a line as [kind, fields]. Raises ValueError where its hash does not hold."""
    if header_of(line) is None:
        raise ValueError("its hash is not that of its content")
    records: list[list[Any]] = json.loads(line)["records"]
    return records


def records_of(raw: Sequence[Sequence[Any]], kinds: Sequence[type]) -> list[Any]:
    """Return plain records as dataclasses of these kinds. Raises ValueError, TypeError, KeyError, AttributeError or
    RecursionError where another version wrote them."""
    by_name = {kind.__name__: kind for kind in (*kinds, BrokenPlay)}
    return [from_dict(by_name[name], fields) for name, fields in raw]


class PlayFile:
    """A file of plays, opened for appending when the first play comes. Its one writer holds the lease of the block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._synced = 0.0

    def append(self, key: str, records: Sequence[Any]) -> tuple[int, int]:
        """Append the line of a play; return where it begins and ends, in bytes. Raises EnvironmentFault where the disk
        refuses."""
        line = play_line(key, records)
        with writing(self.path):
            if self._file is None:
                self._file = self._opened()
            start = self._file.tell()
            if self._file.write(line) < len(line):  # a disk that fills up writes less, without an error
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # a sync for each play would cost more than short plays do
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        return start, start + len(line)

    def close(self) -> None:
        """Sync and close the file. Raises EnvironmentFault where the disk refuses."""
        if self._file is not None:
            with writing(self.path), self._file as file:
                os.fsync(file.fileno())
            self._file = None

    def _opened(self) -> BinaryIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab", buffering=0)  # unbuffered: a killed process loses no finished play
        size = self.path.stat().st_size
        if size > 0 and line_at(self.path, size - 1) != b"\n":
            file.write(b"\n")  # ends the torn line of a killed process
        return file


def lines_from(path: Path, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line) of each line from an offset on, in bytes; the last line may be torn. Raises OSError."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            yield offset, line
            offset += len(line)


# Publishing: the plays of a finished artifact are in its own files, and the cache keeps no second copy of them.

_Places = dict[str, tuple[str, int]]
"""Hash of a line -> (file of the artifact, offset)."""


def publish_plays(root: Path, name: str, files: Iterable[str]) -> None:
    """Replace the cached plays of a finished attempt by references to the lines of its artifact's files.

    Lines are found by their hashes: a play all of whose records are such lines becomes an entry of `published.json`,
    any other play a line of `kept.jsonl`. Both are written before the files of plays are removed, so a kill leaves some
    plays twice and loses none. Does nothing while another process publishes the attempt, or in a folder
    that R2V did not mark as its own.
    """
    folder = root / EPISODES / name
    blocks = [path for path in sorted(folder.glob("*.jsonl")) if path.is_file() and path.name != KEPT]
    if not (blocks and is_own(folder, PLAYS_MARKER)):
        return
    with suppress(LeaseConflict), lease(root / EPISODES / f"{name}.lease"):  # one process publishes an attempt
        places = _places_in(root / ARTIFACTS / name, files)
        # an artifact that was made anew has other lines: its former entries are dropped
        published = {key: lines for key, lines in published_in(folder).items() if _holds(lines, places)}
        if not write_lines(folder / KEPT, _unpublished([folder / KEPT, *blocks], places, published)):
            (folder / KEPT).unlink()
        write_json(folder / PUBLISHED, hashed({"plays": published}))
        for path in blocks:
            path.unlink(missing_ok=True)


def _places_in(artifact: Path, files: Iterable[str]) -> _Places:
    return {
        line_hash(line): (name, offset)
        for name in files
        if name.endswith(LINES)
        for offset, line in places_of(artifact / name)
    }


def _unpublished(paths: Iterable[Path], places: _Places, published: dict[str, RecordLines]) -> Iterator[str]:
    """Yield the lines of the plays that no artifact file holds, and add the others to `published`. Faults are left
    out."""
    done = set[str]()
    for path in paths:
        for _, line in lines_from(path) if path.exists() else ():
            header = header_of(line)
            if header is None or header.fault or header.key in done:
                continue
            done.add(header.key)
            if records := _lines_of(raw_records(line), places):
                published[header.key] = records
            elif header.key not in published:
                yield line.decode().rstrip("\n")


def _lines_of(records: list[list[Any]], places: _Places) -> RecordLines | None:
    """Return the lines of a play's records; None where a record is in no file, or there is no record."""
    matching = []
    for kind, fields in records:
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        content = line_hash(text.encode())
        if content not in places:
            return None
        matching.append([kind, *places[content], content])
    return matching or None


def _holds(lines: RecordLines, places: _Places) -> bool:
    return all(places.get(content) == (file, offset) for _, file, offset, content in lines)
