"""Slots limit the number of running sandboxes over all processes of a user that share the same processors.

    with slot():
        ...                     # at most as many at once as processors

Each sandbox has limits of its own; a bound on all of them together would need a cgroup from an administrator. With at
most one sandbox per processor, their total memory is bounded, and a sandbox's wall-clock limit is not spent waiting for
a processor.

A slot is a locked file, so the end of its holder always frees it.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)
_POLL_SECONDS = 0.02
_PATIENCE = 600.0
"""Seconds after which a sandbox starts without a slot, since a suspended process may hold them all."""


@contextmanager
def slot() -> Iterator[None]:
    """Wait for a slot and hold it during the block."""
    with ExitStack() as held:
        until = time.monotonic() + _PATIENCE
        while not _take(held):
            if time.monotonic() > until:
                log.warning("sandbox started without a slot: waited=%.0fs", _PATIENCE)
                break
            time.sleep(_POLL_SECONDS)
        yield


def _take(held: ExitStack) -> bool:
    """Lock a free slot and return True; also True if slots cannot be used, which is logged once."""
    folder = _folder()
    if folder is None:
        return True
    for number in range(len(os.sched_getaffinity(0))):
        try:
            descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:  # the disk is full or the folder is gone: run uncounted
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process holds this slot
            os.close(descriptor)
            continue
        held.callback(os.close, descriptor)
        return True
    return False


@cache
def _folder() -> Path | None:
    """Return the folder of this user's slots for these processors; None if it cannot be made or is not private."""
    processors = hashlib.sha256(repr(sorted(os.sched_getaffinity(0))).encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir(), f"r2v-sandboxes-{os.getuid()}-{processors}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        log.warning("sandboxes not counted: folder=%s error=%s", folder, error.strerror)
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        log.warning("sandboxes not counted, folder not private: folder=%s", folder)
        return None
    return folder
