"""Trajectory store: episodes in a JSON Lines file, appended by one process at a time, repaired after a crash.

A line is appended in a single write, so a kill can tear only the end of the file. The next writer cuts the torn end
off, keeps it in `<name>.quarantine`, and continues with the missing (task, seed) pairs. A bad line anywhere else is no
result of a crash and is refused by number.
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
"""(task_id, seed, perturbation_seed) of a play."""


class TrajectoryStore:
    """Trajectories file open for appending. A missing file is an empty store."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.lease_path = self.path.with_name(f"{self.path.name}.lease")
        self._descriptor: int | None = None
        self._owner: Owner | None = None

    @contextmanager
    def exclusive(self) -> Iterator[TrajectoryStore]:
        """Be the only writer during the block: lease and mend the file first, sync it at the end.

        Raise LeaseConflict while another process writes the file.
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
        """Append one episode, under `exclusive` for this line unless already entered.

        Raise EnvironmentFault if the disk is full; earlier lines stay whole.
        """
        if self._descriptor is None:
            with self.exclusive():
                return self.append(episode)
        with writing(self.path):
            append_whole(self._descriptor, to_line(episode).encode() + b"\n")

    def sync(self) -> None:
        """Sync everything appended under `exclusive` to disk. Raise LeaseConflict if the lease was lost meanwhile."""
        if self._descriptor is not None and self._owner is not None:
            with writing(self.path):
                os.fsync(self._descriptor)
            confirm(self.lease_path, self._owner)

    def iter_episodes(self, *, growing: bool = False) -> Iterator[Episode]:
        """Yield the episodes. `growing`: skip an unfinished last line of a file still being written.

        Raise InputError with the file and the line.
        """
        return (_parse(self.path, number, line) for number, line in _lines(self.path, growing=growing))

    def iter_lines(self, *, growing: bool = False) -> Iterator[str]:
        """Yield the lines as written, without their newlines."""
        return (line.decode().rstrip("\n") for _, line in _lines(self.path, growing=growing))

    def done_keys(self) -> set[DoneKey]:
        """Return the keys of the stored plays."""
        return {
            (e.metadata.task_id, e.metadata.seed, e.perturbation_seed)
            for e in (self.iter_episodes() if self.path.exists() else ())
        }

    def __len__(self) -> int:
        """Return the number of finished lines, valid or not."""
        if not self.path.exists():
            return 0
        return sum(line.endswith(b"\n") for line in lines_of(self.path))

    def __repr__(self) -> str:
        return f"TrajectoryStore({str(self.path)!r})"


class StoredEpisodes:
    """Episodes of a finished file for which `keep` is True, read again by each iteration: none stays in memory.

    Raise InputError if the file is missing, empty, cut or malformed.
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
    """Sort the episodes of a file by id, atomically, and return their number. Only ids and offsets stay in memory.
    Raise InputError if the file is missing, empty, cut or malformed."""
    offsets: list[tuple[str, int]] = []
    offset = 0
    for number, line in _lines(path, growing=False):
        offsets.append((_parse(path, number, line).episode_id, offset))
        offset += len(line)
    if not offsets:
        raise InputError(f"{path} is empty: it holds no episodes; collect or merge some first")
    with path.open("rb") as file:

        def lines() -> Iterator[str]:
            for _, start in sorted(offsets):
                file.seek(start)
                yield to_line(parse_episode(file.readline().decode()))

        return write_lines(path, lines())


def write_episodes(path: Path, episodes: Iterable[Episode]) -> int:
    """Replace the file's content by these episodes, atomically, and return their number."""
    return write_lines(path, map(to_line, episodes))


def mend_tail(path: Path) -> int:
    """Cut the file after its last JSON line, move the rest to `<name>.quarantine`, and return its size in bytes. Only
    the holder of the file's lease may call this.

    Raise InputError if none of several lines is JSON: such a file was never a store.
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
    """Return the offset after the last line that is a JSON object."""
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
    log.warning("torn last line cut off: file=%s bytes=%d moved_to=%s", path, len(fragment), aside)


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
