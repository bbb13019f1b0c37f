"""Removal: only folders that bear R2V's marker are removed, and no link is followed.

A name is no proof: `tmp-bundle` and `figures` may be the user's. The marker is a file that R2V writes: `.r2v`, whose
first line names the kind of folder, or a record that every folder of the kind has (`attempt.meta.json`). The record of
an attempt proves its parts too. A temporary folder has no marker, since environments use it as their home: this process
remembers the device and the inode of each that it made.

The marker is removed last, so that the next removal finishes one interrupted by kill -9. If the system refuses to
remove a file, it stays, and so does the marker. Folders without a marker, as earlier versions made them, are kept; the
message of NotOurs names the folder and the command that removes it.

Only the standard library and `r2v.errors` are imported: guards of child processes run this in other interpreters.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from r2v.errors import EnvironmentFault, InputError

OWN = ".r2v"
"""Marker file of a folder that R2V made."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOTHING = "there is nothing there"
_temporary: dict[Path, tuple[int, int]] = {}
"""Temporary folder of this process -> its device and inode."""


@dataclass(frozen=True, kw_only=True)
class Marker:
    """Proof that R2V made a folder."""

    kind: str
    """What the folder is; the first line of its `.r2v`."""
    file: str = OWN
    """Plain file in the folder that serves as proof; "": none."""
    within: Marker | None = None
    """Marker of a folder above, which proves everything in that folder."""


ATTEMPT_MARKER = Marker(kind="attempt", file="attempt.meta.json")
ATTEMPT_PART = Marker(kind="part of an attempt", file="", within=ATTEMPT_MARKER)
PLAYS_MARKER = Marker(kind="plays of an attempt")
SNAPSHOT_MARKER = Marker(kind="snapshot", file="snapshot.json")
TEMPORARY = Marker(kind="temporary folder", file="")


class NotOurs(InputError):
    """Refusal to remove or write a file, link or folder without proof that R2V made it."""


def make_own(path: Path, marker: Marker, *, anew: bool = False) -> Path:
    """Make and mark the folder `path` and return it. One that bears the marker keeps its content; `anew` empties it.
    Raise NotOurs for a link, a file, and a non-empty folder without the marker; EnvironmentFault if the system refuses
    to empty the folder."""
    if anew and is_own(path, marker) and not remove_own(path, marker):
        raise EnvironmentFault(f"{path}: cannot be removed; mend its permissions and run the same command again")
    with suppress(FileExistsError):
        path.mkdir(parents=True)
    with _opened(path, marker) as folder:
        if not _bears(folder, marker):
            entries = _names(folder)
            torn = entries == [OWN] and _is_empty_file(folder, OWN)  # by a kill between creation and write
            if entries and not torn and not _bears(folder, marker):  # another process may have marked it meanwhile
                raise NotOurs(_unmarked(path, marker))
            file = os.open(OWN, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666, dir_fd=folder)
            try:
                os.write(file, f"{marker.kind}\n".encode())
            finally:
                os.close(file)
    return path


def make_own_temporary(prefix: str) -> Path:
    """Make a folder in the system's temporary folder, which this process may remove, and return it."""
    import tempfile  # imported late: guards that only remove start faster

    folder = Path(tempfile.mkdtemp(prefix=prefix))
    adopt_temporary(folder, folder.lstat())
    return folder


def adopt_temporary(folder: Path, status: os.stat_result) -> Path:
    """Register a temporary folder made by the parent process and return it. This process may remove it while the path
    leads to the folder of this status."""
    _temporary[folder] = (status.st_dev, status.st_ino)
    return folder


def is_own(path: Path, marker: Marker) -> bool:
    """True if R2V made the file or folder at `path`, so that `remove_own` would remove it."""
    try:
        require_own(path, marker)
    except NotOurs:
        return False
    return True


def require_own(path: Path, marker: Marker) -> None:
    """Raise NotOurs if `path` is missing or nothing proves that R2V made it."""
    with _proved(path, marker):
        pass


def remove_own(path: Path, marker: Marker, *, spare: str = "") -> bool:
    """Remove a folder that R2V made, or a file, link or folder within one; return True if nothing is left at `path`.

    `spare`: prefix of entries of the folder to keep, and the folder with them. Raise NotOurs, and remove nothing, if
    the proof is missing.
    """
    try:
        with _proved(path, marker) as (folder, name):
            if name is None:
                _empty(folder, marker.file, spare)
            else:
                _remove_entry(folder, name)
    except NotOurs:
        if os.path.lexists(path):
            raise
        return True
    if name is None:
        with suppress(OSError):  # not empty
            path.rmdir()
    if os.path.lexists(path):
        return False
    _temporary.pop(path, None)
    return True


def _empty(folder: int, marker: str, spare: str) -> None:
    """Remove the entries of an open folder: the marker last, and only if no other entry had to stay."""
    for name in _names(folder):
        if name != marker and not (spare and name.startswith(spare)):
            _remove_entry(folder, name)
    left = [name for name in _names(folder) if name != marker and not (spare and name.startswith(spare))]
    if marker and not left:
        _remove_entry(folder, marker)


def _remove_entry(folder: int, name: str) -> None:
    """Remove one entry of an open folder as far as the system allows; of a link, only the link."""
    with suppress(OSError):  # the caller sees that the entry is left, and keeps the marker
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


@contextmanager
def _proved(path: Path, marker: Marker) -> Iterator[tuple[int, str | None]]:
    """Yield the open marked folder and None, or the open parent folder of `path` and the name in it."""
    parent = None if marker.within is None or path.name in ("", "..") else _open_parent(path, marker.within)
    if parent is not None:
        try:
            if not os.path.lexists(path):
                raise NotOurs(f"{path}: {_NOTHING}")
            yield parent, path.name
        finally:
            os.close(parent)
        return
    with _opened(path, marker) as folder:
        status = os.fstat(folder)
        made_here = marker == TEMPORARY and _temporary.get(path) == (status.st_dev, status.st_ino)
        if not (made_here or _bears(folder, marker)):
            raise NotOurs(_unmarked(path, marker))
        yield folder, None


@contextmanager
def _opened(path: Path, marker: Marker) -> Iterator[int]:
    """Open a folder without following a link. Raise NotOurs for anything else."""
    try:
        folder = os.open(path, _FOLDER)
    except OSError as error:
        if not os.path.lexists(path):
            raise NotOurs(f"{path}: {_NOTHING}") from None
        if path.is_symlink():
            reason = f"it is a link, and R2V removes nothing through one; it is kept; to remove it: rm {_word(path)}"
        elif not path.is_dir():
            reason = f"it is a file and no {marker.kind} of R2V; it is kept; to remove it: rm {_word(path)}"
        else:
            reason = f"it cannot be opened ({error.strerror}), so it is kept"
        raise NotOurs(f"{path}: {reason}") from None
    try:
        yield folder
    finally:
        os.close(folder)


def _open_parent(path: Path, marker: Marker) -> int | None:
    """Open the parent folder of `path` through the nearest marked folder above; None if none is marked or a link lies
    between."""
    for above in path.absolute().parents:
        try:
            folder = os.open(above, _FOLDER)
        except OSError:
            return None
        if _bears(folder, marker):
            return _open_below(folder, path.absolute().relative_to(above).parts[:-1])
        os.close(folder)
        if above.name == "..":  # the folders above depend on links
            return None
    return None


def _open_below(folder: int, names: tuple[str, ...]) -> int | None:
    """Open a folder below an open one, which is closed; None if a link or a file lies on the way."""
    for name in names:
        try:
            inner = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:
            return None
        finally:
            os.close(folder)
        folder = inner
    return folder


def _bears(folder: int, marker: Marker) -> bool:
    """True if an open folder holds the marker's plain file; a `.r2v` file must also name the kind."""
    if not marker.file:
        return False
    try:
        file = os.open(marker.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return False
        kind = f"{marker.kind}\n".encode()
        return marker.file != OWN or os.read(file, len(kind)) == kind
    finally:
        os.close(file)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _is_empty_file(folder: int, name: str) -> bool:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _unmarked(path: Path, marker: Marker) -> str:
    proof = f" (no {marker.file} that says so)" if marker.file else ""
    return f"{path}: R2V did not mark it as its own {marker.kind}{proof}; it is kept; to remove it: rm -r {_word(path)}"


def _word(path: Path) -> str:
    return shlex.quote(str(path))
