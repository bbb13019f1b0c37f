"""The episode cache: what was played once is never played again, over attempts, stages and experiments.

    cache = EpisodeCache.of(work)
    cache.add("plays", key, [episode])          # appended with a hash of its own as soon as it ends
    cache.read(key, (Episode,))                 # what it came to, or None

`outputs/.episodes/<job>-<fingerprint>/` holds what an attempt played, a file a block; every attempt reads all of them.
A play's key (`r2v.rollout.cells`) is the content of all that determines it, so whoever asks for the same play finds it:
an evaluation with one seed more plays that seed. Once the artifact is finished its own files hold the episodes, and
`published.json` says where (key -> file, line, hash); only records that no file has are kept, in `kept.jsonl`
(`r2v.rollout.settling`).

Nothing here is trusted: every line is held against its hash when it is read. Damage costs a play and a line in the log.
A play that a fault of the world ended counts within its attempt and for nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from r2v.errors import InputError, LeaseConflict
from r2v.log import logger
from r2v.rollout.play_lines import PlayFile, header_of, line_at, line_hash, lines_from, raw_records, records_of
from r2v.storage import compression
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST
from r2v.storage.files import write_lines, writing
from r2v.storage.integrity import read_hashed, set_aside
from r2v.storage.lease import lease
from r2v.storage.paths import ARTIFACTS, EPISODES
from r2v.storage.removal import PLAYS_MARKER, NotOurs, is_own, make_own, remove_own

PUBLISHED, KEPT = "published.json", "kept.jsonl"


@dataclass(frozen=True, slots=True)
class _Line:
    """A play in a file of play lines."""

    path: Path
    offset: int


@dataclass(frozen=True, slots=True)
class _Published:
    """A play whose records are lines of an artifact's files: [kind, file, offset, hash of the line] each."""

    artifact: Path
    records: list[list[Any]]


class PlaysHome(Protocol):
    """A file that plays are kept in instead of the cache, such as a run's trajectories."""

    folder: Path

    def put(self, key: str, records: Sequence[Any]) -> bool:
        """Keep what a play came to; False where the cache is to keep it."""
        ...

    def look(self) -> Iterator[tuple[str, list[list[Any]]]]:
        """Key -> [kind, file, offset, hash of the line] of each record, of what was added since the last look."""
        ...


class EpisodeCache:
    """The plays of a project as one attempt, the folder `own` of `store`, sees and adds to them. Only places of lines
    stay in memory. `alone`: the plays of other attempts are not looked at. `home`: where else this attempt's lie."""

    def __init__(self, store: Path, own: str, *, alone: bool = False, home: PlaysHome | None = None) -> None:
        self.store, self.folder, self._alone, self._home = store, store / own, alone, home
        self._places: dict[str, _Line | _Published] | None = None
        self._read_to: dict[Path, int] = {}
        self._files: dict[str, PlayFile] = {}
        self._told: set[Path] = set()
        self._settled = False

    @classmethod
    def of(cls, work: Work) -> EpisodeCache:
        """The cache as the attempt of a stage sees it; one that is made anew reads nobody else's plays."""
        return cls(work.root / EPISODES, work.folder.name, alone=work.anew)

    def make_folder(self) -> None:
        """Make and mark the folder that this attempt's plays lie in. One that an earlier version made is used as it is,
        and never removed. Raises EnvironmentFault where the disk refuses."""
        with writing(self.folder), suppress(NotOurs):
            make_own(self.folder, PLAYS_MARKER)

    def __contains__(self, key: str) -> bool:
        return key in self._known()

    def count(self) -> int:
        """How many plays it holds."""
        return len(self._known())

    def read(self, key: str, kinds: Sequence[type]) -> list[Any] | None:
        """What the play of this key came to, as records of these kinds; None where nobody has played it, or where what
        was written is damaged: then it is as good as not played."""
        place = self._known().get(key)
        if place is None:
            return None
        source = place.path if isinstance(place, _Line) else place.artifact
        try:
            return records_of(_raw(place, key), kinds)
        except FileNotFoundError:
            logger.debug("  %s: settled meanwhile, or its artifact is gone", source)
        except (OSError, ValueError) as error:
            self._tell(source, f"a play of it is played again: {error}")
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            self._tell(source, f"a play of another R2V is played again: {error}")
        del self._known()[key]
        return None

    def add(self, block: str, key: str, records: Sequence[Any]) -> None:
        """Write down what a play of a block came to. Raises EnvironmentFault where the disk refuses."""
        if self._home is not None and self._home.put(key, records):
            return
        file = self._files.setdefault(block, PlayFile(self.folder / f"{block}.jsonl"))
        begin, end = file.append(key, records)
        self._known()[key] = _Line(file.path, begin)
        if self._read_to.get(file.path, 0) == begin:
            self._read_to[file.path] = end

    def close(self, block: str | None = None) -> None:
        """Wait until the disk has everything, or all of one block."""
        for name in [*self._files] if block is None else [block]:
            if name in self._files:
                self._files.pop(name).close()

    def refresh(self) -> None:
        """Look for what other processes of this attempt have added, or have settled."""
        if self._places is not None:
            for path in _play_files(self.folder):
                self._scan(path, shared=False)
            if not self._settled and (self.folder / PUBLISHED).exists():
                self._take_published(self.folder)
            self._take_home()

    def forget(self) -> None:
        """Take away the files of this attempt's plays, which lie elsewhere now."""
        self.close()
        if is_own(self.folder, PLAYS_MARKER):
            for path in _play_files(self.folder):
                path.unlink(missing_ok=True)

    def forget_faults(self) -> None:
        """Take out of this attempt's files what faults of the world ended, so that it is played again. A block that
        another process holds is left."""
        self.close()
        for path in _play_files(self.folder):
            try:
                with lease(lease_of(path)):
                    whole = [(header, line) for _, line in lines_from(path) if (header := header_of(line)) is not None]
                    if any(header.fault for header, _ in whole):
                        write_lines(path, (line.decode().rstrip("\n") for header, line in whole if not header.fault))
            except LeaseConflict:
                continue
        self._places = None
        self._read_to.clear()

    def _known(self) -> dict[str, _Line | _Published]:
        """Key -> where its play lies, of all that is as it was written."""
        if self._places is None:
            self._places = {}
            others = () if self._alone else (path for path in _folders(self.store) if path != self.folder)
            for folder in others:
                self._take_published(folder)
                for path in _play_files(folder):
                    self._scan(path, shared=True)
            self._take_published(self.folder)
            before = len(self._places)
            for path in _play_files(self.folder):
                self._scan(path, shared=False)
            if resumed := len(self._places) - before:
                logger.info("  resuming: %d plays of this attempt are already there", resumed)
            self._take_home()
        return self._places

    def _scan(self, path: Path, *, shared: bool) -> None:
        """Take the whole lines of a file in, from where the last look ended."""
        assert self._places is not None
        damaged, place = 0, self._read_to.get(path, 0)
        try:
            for offset, line in lines_from(path, place):
                if not line.endswith(b"\n"):
                    break  # torn, or another process is about to end it
                place = offset + len(line)
                header = header_of(line)
                damaged += header is None and bool(line.strip())
                if header is not None and not (shared and header.fault):
                    self._places.setdefault(header.key, _Line(path, offset))
        except OSError as error:
            self._tell(path, f"it cannot be read: {error}")
        self._read_to[path] = place
        if damaged:
            logger.warning("  %s: %d lines are damaged; their plays are played again", path, damaged)

    def _take_published(self, folder: Path) -> None:
        assert self._places is not None
        self._settled |= folder == self.folder and (folder / PUBLISHED).exists()
        for key, records in published_in(folder).items():
            self._places[key] = _Published(folder.parent.with_name(ARTIFACTS.name) / folder.name, records)

    def _take_home(self) -> None:
        assert self._places is not None
        if self._home is not None:
            for key, records in self._home.look():
                self._places[key] = _Published(self._home.folder, records)

    def _tell(self, source: Path, problem: str) -> None:
        """Name a damaged file, once."""
        if source not in self._told:
            self._told.add(source)
            logger.warning("  %s: %s", source, problem)


def lease_of(path: Path) -> Path:
    """The lease of the one who plays a block and appends to its file."""
    return path.with_suffix(".lease")


def published_in(folder: Path) -> dict[str, list[list[Any]]]:
    """Key -> its records' lines, of the plays that lie in the artifact's files. A damaged list is named and is none."""
    try:
        plays = read_hashed(folder / PUBLISHED)["plays"]
        return dict(plays)
    except FileNotFoundError:
        return {}
    except (InputError, KeyError, TypeError, ValueError) as error:
        logger.warning("  %s; its plays are played again", error)
        return {}


def published_line(artifact: Path, record: Sequence[Any]) -> bytes:
    """The line of an artifact's file that a record is. Raises OSError, ValueError where it is not what it was."""
    _, file, offset, content = record
    line = compression.line_at(artifact / file, offset)
    if line_hash(line) != content:
        raise ValueError(f"{file} is not what was published")
    return line


def forget_finished(root: Path, name: str) -> None:
    """Take away all that a finished attempt has played, because it is to be made anew; an unfinished one goes on. Plays
    that R2V did not mark as its own are set aside, where the attempt does not find them."""
    folder = root / EPISODES / name
    if (root / ARTIFACTS / name / ARTIFACT_MANIFEST).exists():
        try:
            remove_own(folder, PLAYS_MARKER)
        except NotOurs as error:
            logger.warning("  %s; it is set aside as %s", error, set_aside(folder).name)


def _raw(place: _Line | _Published, key: str) -> list[list[Any]]:
    if isinstance(place, _Published):
        return [[record[0], json.loads(published_line(place.artifact, record))] for record in place.records]
    line = line_at(place.path, place.offset)
    header = header_of(line)
    if header is None or header.key != key:
        raise ValueError("it is not what was written")
    return raw_records(line)


def _folders(store: Path) -> list[Path]:
    return sorted(path for path in store.iterdir() if path.is_dir()) if store.is_dir() else []


def _play_files(folder: Path) -> Iterable[Path]:
    """The files of play lines in an attempt's folder. What is in the way of one is set aside."""
    for path in sorted(folder.glob("*.jsonl")):
        if path.is_file():
            yield path
        else:
            logger.warning("  %s is not a file: set aside as %s", path, set_aside(path).name)
