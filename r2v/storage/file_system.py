"""Refusals of a file system that are no failure of the work, and those that pass.

    content = steadily(path.read_bytes)      # a network's file system may fail for a moment: three more tries
    share(path)                              # the mode that the umask gives, where a library made the file private

FUSE and SMB mounts refuse to sync a folder or to set a mode or a time; nothing is lost by it. NFS forgets a handle, or
answers late.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from r2v.errors import UNSTEADY, FileSystemFault

Result = TypeVar("Result")

_PAUSES = (0.2, 1.0, 5.0)
"""Seconds before each further try: an NFS client renews a stale handle with the next look-up."""
_EXTRA = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EACCES)
"""Answers of a file system that lacks an extra."""
_MIB = 1 << 20


def steadily(read: Callable[[], Result], pauses: tuple[float, ...] = _PAUSES) -> Result:
    """The result of `read`, which is called again where the file system fails for a moment. Raises FileSystemFault
    where it goes on failing, and every other OSError at once."""
    for pause in pauses:
        try:
            return read()
        except OSError as error:
            if error.errno not in UNSTEADY:
                raise
        time.sleep(pause)
    try:
        return read()
    except OSError as error:
        if error.errno not in UNSTEADY:
            raise
        raise FileSystemFault.of(error) from error


def walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder, in no order, links to folders not followed; each folder is read steadily."""
    for entry in steadily(partial(_entries, folder)):
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from walk(Path(entry.path))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):  # it is not there, or was removed meanwhile
        return []


@contextmanager
def optional() -> Iterator[None]:
    """Go on where a file system lacks what is asked of it: the sync of a folder, a mode, a time."""
    try:
        yield
    except OSError as error:
        if error.errno not in _EXTRA:
            raise


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with optional():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def share(path: Path) -> None:
    """Give a file the mode of one that was opened for writing here: safetensors makes its own private, whatever the
    umask, and a group's colleague could not resume."""
    with optional():
        path.chmod(0o666 & ~umask())


def umask() -> int:
    """The umask of this process, read without setting it: threads share it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def free_space(path: Path) -> str:
    """Words on the space that a file's disk has left, and on the other places that are full."""
    places = {"there": path.parent, "here": Path(), "in TMPDIR": Path(tempfile.gettempdir())}
    left = {}
    for name, folder in places.items():
        try:
            left[name] = shutil.disk_usage(folder).free // _MIB
        except OSError:
            continue
    return ", ".join(f"{free} MiB free {name}" for name, free in left.items() if name == "there" or not free)
