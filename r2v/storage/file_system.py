"""File-system errors that are transient or harmless: retries and optional operations.

    content = steadily(path.read_bytes)      # three retries of a transient network error
    share(path)                              # the umask's mode for a file that a library made private

FUSE and SMB mounts refuse to sync a folder or to set a mode or a time, without harm. NFS handles go stale, and NFS
servers time out.
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
"""Seconds before each retry: an NFS client renews a stale handle with the next look-up."""
_EXTRA = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EACCES)
"""Errors of a file system that does not support an operation."""
_MIB = 1 << 20


def steadily(read: Callable[[], Result], pauses: tuple[float, ...] = _PAUSES) -> Result:
    """Return the result of `read`, retried on transient errors. Raise FileSystemFault if they persist, and every other
    OSError at once."""
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
    """Yield every path below a folder, in no order, without following links to folders; retry transient errors."""
    for entry in steadily(partial(_entries, folder)):
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from walk(Path(entry.path))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):  # another process may have removed the folder meanwhile
        return []


@contextmanager
def optional() -> Iterator[None]:
    """Ignore the error of a file system that does not support an operation: syncing a folder, setting mode or time."""
    try:
        yield
    except OSError as error:
        if error.errno not in _EXTRA:
            raise


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that a rename in it survives a power cut, if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with optional():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def share(path: Path) -> None:
    """Set a file's mode by the umask: safetensors makes its files private, and a colleague could not resume."""
    with optional():
        path.chmod(0o666 & ~umask())


def umask() -> int:
    """Return the umask of this process."""
    # os.umask reads it only by setting it, which other threads would see.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def free_space(path: Path) -> str:
    """Return text on the free space of a file's disk, and on the working folder and TMPDIR if they are full."""
    folders = {"there": path.parent, "here": Path(), "in TMPDIR": Path(tempfile.gettempdir())}
    left = {}
    for name, folder in folders.items():
        try:
            left[name] = shutil.disk_usage(folder).free // _MIB
        except OSError:  # this text belongs to an error message, which shall not be lost
            continue
    return ", ".join(f"{free} MiB free {name}" for name, free in left.items() if name == "there" or not free)
