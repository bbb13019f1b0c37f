"""Trajectory store: episodes in a JSON-lines file, appended by one process at a time, repaired after a crash.

A line goes out in a single write, so whatever kills the writer can tear only the end of the file. The next
writer cuts the torn end off, keeps it in `<name>.quarantine`, and carries on with the (task, seed) pairs that
are not there yet. A bad line anywhere else is not a crash's doing and is refused by name.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from r2v.data.episode import Episode, parse_episode, to_line
from r2v.errors import InputError
from r2v.storage.compression import lines_of
from r2v.storage.files import append_whole, remove_drafts, write_lines, writing
from r2v.storage.lease import Owner, confirm, lease

log = logging.getLogger(__name__)

DoneKey = tuple[str, int, int | None]
"""(task_id, seed, perturbation_seed): what was to be played."""


class TrajectoryStore:
    """A trajectories file that may be appended to. A path that is not there yet is an empty store."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.lease_path = self.path.with_name(f"{self.path.name}.lease")
        self._descriptor: int | None = None
        self._owner: Owner | None = None

    @contextmanager
    def exclusive(self) -> Iterator[TrajectoryStore]:
        """Be the only writer for the length of the block: leased, mended, and synced to disk at the end.

        Raises LeaseConflict while another process writes here.
        """
        with lease(self.lease_path) as self._owner:
            with writing(self.path):
                remove_drafts(self.path)
                mend_tail(self.path)
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                yield self
                self.sync()
            finally:
                os.close(self._descriptor)
                self._descriptor = self._owner = None

    def append(self, episode: Episode) -> None:
        """Add one episode. Outside `exclusive` the store is taken for this one line.

        Raises EnvironmentFault when the disk is full: the lines before it stay whole.
        """
        if self._descriptor is None:
            with self.exclusive():
                return self.append(episode)
        with writing(self.path):
            append_whole(self._descriptor, to_line(episode).encode() + b"\n")

    def sync(self) -> None:
        """Wait until the disk has everything appended under `exclusive`, and make sure that the store was
        ours all the while. Raises LeaseConflict when it was not."""
        if self._descriptor is not None and self._owner is not None:
            with writing(self.path):
                os.fsync(self._descriptor)
            confirm(self.lease_path, self._owner)

    def iter_episodes(self, *, growing: bool = False) -> Iterator[Episode]:
        """Stream the episodes. `growing` passes over an unfinished last line, for a file still being written.

        Raises InputError naming the file and the line.
        """
        return (_parse(self.path, number, line) for number, line in _lines(self.path, growing=growing))

    def iter_lines(self, *, growing: bool = False) -> Iterator[str]:
        """Stream the lines as they are written, without their newlines."""
        return (line.decode().rstrip("\n") for _, line in _lines(self.path, growing=growing))

    def done_keys(self) -> set[DoneKey]:
        """What need not be played again."""
        return {
            (e.metadata.task_id, e.metadata.seed, e.perturbation_seed)
            for e in (self.iter_episodes() if self.path.exists() else ())
        }

    def __len__(self) -> int:
        """How many finished lines the file has, whether or not they are good."""
        if not self.path.exists():
            return 0
        return sum(line.endswith(b"\n") for line in lines_of(self.path))

    def __repr__(self) -> str:
        return f"TrajectoryStore({str(self.path)!r})"


def read_episodes(path: Path) -> list[Episode]:
    """All episodes of a file. Raises InputError where it is missing, empty, cut or malformed."""
    episodes = list(TrajectoryStore(path).iter_episodes())
    if not episodes:
        raise InputError(f"{path} is empty: it holds no episodes; collect or merge some first")
    return episodes


class StoredEpisodes:
    """The episodes of a file that is done, those to `keep`, read anew by each iteration: none stays in memory.

    Raises InputError where the file is missing, empty, cut or malformed.
    """

    def __init__(self, path: Path, *, keep: Callable[[Episode], bool] = lambda episode: True) -> None:
        self.path, self._keep = path, keep
        self._length: int | None = None

    def __iter__(self) -> Iterator[Episode]:
        empty = True
        for episode in TrajectoryStore(self.path).iter_episodes():
            empty = False
            if self._keep(episode):
                yield episode
        if empty:
            raise InputError(f"{self.path} is empty: it holds no episodes; collect or merge some first")

    def __len__(self) -> int:
        if self._length is None:
            self._length = sum(1 for _ in self)
        return self._length


def sort_episodes(path: Path) -> int:
    """Put the episodes of a file into the order of their ids, whole or not at all; returns how many. Ids and places
    alone stay in memory. Raises InputError where the file is missing, empty, cut or malformed."""
    places: list[tuple[str, int]] = []
    offset = 0
    for number, line in _lines(path, growing=False):
        places.append((_parse(path, number, line).episode_id, offset))
        offset += len(line)
    if not places:
        raise InputError(f"{path} is empty: it holds no episodes; collect or merge some first")
    with path.open("rb") as file:

        def lines() -> Iterator[str]:
            for _, start in sorted(places):
                file.seek(start)
                yield to_line(parse_episode(file.readline().decode()))

        return write_lines(path, lines())


def write_episodes(path: Path, episodes: Iterable[Episode]) -> int:
    """Replace the file by these episodes, whole or not at all; returns how many."""
    return write_lines(path, map(to_line, episodes))


def mend_tail(path: Path) -> int:
    """Cut the file after its last line that is JSON; what follows goes to `<name>.quarantine`. Only the
    holder of the file's lease may call this. Returns the bytes cut.

    Raises InputError where no line of several is JSON: such a file was never a store.
    """
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with path.open("r+b") as file:
        keep, size = _good_end(path, file.fileno()), path.stat().st_size
        if keep == size and _ends_line(file.fileno(), size):
            return 0
        file.seek(keep)
        if keep < size:
            _quarantine(path, file.read())
            file.truncate(keep)
        else:
            file.write(b"\n")
            file.flush()
        os.fsync(file.fileno())
    return size - keep


def _good_end(path: Path, descriptor: int) -> int:
    """The offset just after the last line that is a JSON object."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as view:
        end = len(view)
        while end:
            start = view.rfind(b"\n", 0, end - 1) + 1
            if _is_record(view[start:end]):
                return end
            end = start
        if b"\n" in view[:-1].strip(b"\0\n"):
            raise InputError(f"{path} holds no line of JSON: it is not a trajectories file; name another")
    return 0


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _ends_line(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"


def _quarantine(path: Path, fragment: bytes) -> None:
    aside = path.with_name(f"{path.name}.quarantine")
    with aside.open("ab") as file:
        file.write(fragment + b"\n")
        file.flush()
        os.fsync(file.fileno())
    log.warning("%s: a torn end of %d bytes was cut off and kept in %s", path, len(fragment), aside)


def _lines(path: Path, *, growing: bool) -> Iterator[tuple[int, bytes]]:
    try:
        for number, line in enumerate(lines_of(path), start=1):
            if line.endswith(b"\n") or _is_record(line):
                yield number, line
            elif not growing:
                raise InputError(
                    f"{path}:{number}: the file is cut in its last line; resume the run that "
                    "wrote it, which mends it and plays the missing episode again"
                )
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such trajectories file; collect it first or name another") from error


def _parse(path: Path, number: int, line: bytes) -> Episode:
    try:
        return parse_episode(line.decode())
    except ValueError as error:
        raise InputError(f"{path}:{number}: {error}; restore the file or remove that line") from error
