"""Working folders packed into bytes, so that they outlive the sandbox in which a command changed them.

    content = pack("/", ["home", "tmp"])
    unpack(content, "/")        # inside only: a command's files are never unpacked outside a sandbox

Folders, regular files with their modes, and symbolic links are packed; links are never followed, and other kinds are
left out. Times are not packed, so that the same tree always gives the same bytes.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_TIME = 1_600_000_000
"""Modification time of every packed file, in seconds since 1970."""


def pack(root: str, tops: Sequence[str]) -> bytes:
    """Return the content of the folders `tops` below `root`, without unreadable files."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for top in tops:
            for folder, folders, files in os.walk(Path(root, top)):
                folders.sort()
                for name in sorted([*folders, *files]):
                    with suppress(OSError):
                        path = Path(folder, name)
                        _add(archive, path, str(path.relative_to(root)))
    return packed.getvalue()


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    status = path.lstat()
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime = stat.S_IMODE(status.st_mode), _TIME
    if stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
        archive.addfile(entry)
    elif stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    elif stat.S_ISREG(status.st_mode):
        content = path.read_bytes()
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))


def unpack(content: bytes, root: str) -> None:
    """Unpack folders below `root`, into folders that exist. Raises OSError if they do not fit, tarfile.TarError for
    invalid bytes."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        folders = []
        for entry in archive:
            path = Path(root, entry.name)
            if entry.issym():
                path.symlink_to(entry.linkname)
                os.utime(path, (_TIME, _TIME), follow_symlinks=False)
            elif entry.isdir():
                path.mkdir(exist_ok=True)
                folders.append((path, entry.mode))
            elif (file := archive.extractfile(entry)) is not None:
                path.write_bytes(file.read())
                path.chmod(entry.mode)
                os.utime(path, (_TIME, _TIME))
        for path, mode in reversed(folders):
            with suppress(PermissionError):  # the top folders belong to another user
                path.chmod(mode)
                os.utime(path, (_TIME, _TIME))
