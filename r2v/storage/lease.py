"""The lease: the right to be the only one who writes here, on any shared file system, without a server.

`flock` is not kept by every NFS mount, so a lease is a folder holding one file whose *name* is the owner.
Three operations are atomic on the server and are all that is needed:

- take: rename a private folder, owner file inside, to the lease's path. It fails while the path is a folder
  that is not empty.
- take over: rename the dead owner's file to a name of one's own. Of many who try, one finds the old name.
- release: remove the file of one's own name. Nobody else's can be hit.

A holder touches its file while it lives (the heartbeat). One that died on this machine is known by its process id and
start time and is replaced at once; one on another machine is replaced when its file has not been touched for `ttl`
seconds of the file server's clock. A time further in the future than that (clocks that differ between machines, or
garbage) has no age: whoever wants the lease then watches the file for a heartbeat, at most `ttl` seconds. Files that
are no owner's (an NFS client's, a file browser's) hold nothing: whoever takes a lease that nobody has moves them aside.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from r2v.errors import LeaseConflict
from r2v.storage.files import writing

log = logging.getLogger(__name__)

_OWNER = re.compile(r"([^,]*),([0-9a-f]+),([1-9]\d{0,8}),(\d*),([^,]*),([0-9a-f]+)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who holds a lease. Its file name is these fields, joined by commas."""

    host: str
    machine: str
    pid: int
    started: str
    job: str
    token: str

    @classmethod
    def here(cls) -> Owner:
        """This process, with a fresh token."""
        return cls.of_process(os.getpid())

    @classmethod
    def of_process(cls, pid: int) -> Owner:
        """A process of this machine, with a fresh token."""
        return cls(
            host=socket.gethostname(),
            machine=_machine(),
            pid=pid,
            started=_started(pid),
            job=os.environ.get("SLURM_JOB_ID", ""),
            token=secrets.token_hex(8),
        )

    @property
    def filename(self) -> str:
        """The name of the owner's file."""
        return ",".join(map(str, astuple(self)))

    @classmethod
    def of(cls, filename: str) -> Owner | None:
        """The owner whose file this is; None for the file of somebody else, such as .nfs0001 or .DS_Store."""
        match = _OWNER.fullmatch(filename)
        if match is None:
            return None
        host, machine, pid, started, job, token = match.groups()
        return cls(host=host, machine=machine, pid=int(pid), started=started, job=job, token=token)

    @property
    def lives(self) -> bool | None:
        """Whether the very process still runs, and no later one of its number; None where it is another machine's."""
        return _runs(self.pid, self.started) if self.machine == _machine() else None

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}" + (f" (Slurm job {self.job})" if self.job else "")


@contextmanager
def lease(path: Path, *, ttl: float = 60.0, wait: float = 0.0) -> Iterator[Owner]:
    """Hold the lease at `path` (a folder that exists only while held) for the length of the block.

    ttl: seconds without a sign of life after which a holder on another machine counts as dead.
    wait: seconds to wait for a living holder before giving up.
    Raises LeaseConflict when another process has it, or took it while this one stood still for longer than `ttl`.
    """
    me = Owner.here()
    deadline, pause = time.monotonic() + wait, 0.01
    while (other := _attempt(path, me, ttl)) is not None:
        if time.monotonic() >= deadline:
            remedy = f"scancel {other.job}" if other.job else f"kill {other.pid}"
            raise LeaseConflict(
                f"{path} is held by {other}; wait until it ends or stop it: {remedy}", slurm_job=other.job
            )
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(0.2, 1.5 * pause)
    stop = threading.Event()
    threading.Thread(target=_beat, args=(path / me.filename, ttl / 4, stop), daemon=True).start()
    try:
        yield me
        confirm(path, me)
    finally:
        stop.set()
        _release(path, me)


def holder(path: Path, *, ttl: float = 60.0) -> Owner | None:
    """The living holder of the lease at `path`, or None. Takes nothing, and waits for no heartbeat."""
    owner = _current(path)
    return None if owner is None or _stale(path, owner, ttl, _server_time(path)) else owner


def confirm(path: Path, me: Owner) -> None:
    """Check, before something is published, that the lease is still ours. Raises LeaseConflict if not."""
    if not (path / me.filename).exists():
        raise LeaseConflict(
            f"{path} was taken by {_current(path) or 'another process'} while {me} stood still; "
            "run the same command again"
        )


def _attempt(path: Path, me: Owner, ttl: float) -> Owner | None:
    """Try once. None: the lease is ours; otherwise who has it."""
    private = path.with_name(f".{path.name}.{me.token}")
    with writing(path):
        private.mkdir(parents=True)
        try:
            (private / me.filename).touch()
            now = (private / me.filename).stat().st_mtime
            while True:
                if _place(private, path, me):
                    return None
                other = _current(path)
                if other is not None and not _stale(path, other, ttl, now) and _beats(path, other, ttl, now):
                    return other
                if other is not None and _take_over(path, other, me):
                    return None
                if other is None:
                    _clear(path)
        finally:
            _release(private, me)


def _place(private: Path, path: Path, me: Owner) -> bool:
    """Move our folder to the lease's path; False when another's is there."""
    try:
        private.rename(path)
    except OSError as error:
        # An NFS client may report a rename as failed that the server has done: look.
        taken = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        if error.errno not in taken and not (path / me.filename).exists():
            raise
        return (path / me.filename).exists()
    return True


def _take_over(path: Path, dead: Owner, me: Owner) -> bool:
    """Rename the dead owner's file to ours. It is touched first, so that ours is fresh from the start."""
    with suppress(FileNotFoundError):
        os.utime(path / dead.filename)
        (path / dead.filename).rename(path / me.filename)
    return (path / me.filename).exists()


def _clear(path: Path) -> None:
    """Move what is no owner's out of a lease that nobody has. Each way of moving fails, rather than hit a lease that
    another process has taken meanwhile: only names that are no owner's, and a file in the folder's place by link and
    unlink, which refuse folders."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.quarantine")
    strays = [path]
    try:
        if path.is_dir():
            strays = [file for file in path.iterdir() if Owner.of(file.name) is None]
            if strays:
                aside.mkdir()
            for file in strays:
                file.rename(aside / file.name)
        else:
            os.link(path, aside, follow_symlinks=False)
            path.unlink()
    except FileNotFoundError:
        return  # another process was faster
    except (PermissionError, IsADirectoryError):
        if strays == [path] and path.is_dir():
            return
        raise
    if strays:
        names = ", ".join(ascii(file.name)[1:-1] for file in strays)
        log.warning("%s: %s: no lease of ours, moved to %s", path, names, aside.name)


def _release(path: Path, me: Owner) -> None:
    with suppress(FileNotFoundError):
        (path / me.filename).unlink()
    with suppress(OSError):  # not empty: somebody else has it by now
        path.rmdir()


def _current(path: Path) -> Owner | None:
    try:
        return next((owner for file in path.iterdir() if (owner := Owner.of(file.name))), None)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _stale(path: Path, owner: Owner, ttl: float, now: float) -> bool:
    """Whether the owner is dead, `now` being the file server's time."""
    if owner.machine == _machine():
        return not _runs(owner.pid, owner.started)
    touched = _mtime(path / owner.filename)
    return touched is None or now - touched > ttl


def _beats(path: Path, owner: Owner, ttl: float, now: float) -> bool:
    """Whether an owner that seems fresh is alive. A time in the past or near `now` is taken for true; one in the future
    is no evidence, but a heartbeat within `ttl` (four are due) is, whatever clock it is written by."""
    first = _mtime(path / owner.filename)
    if first is None or first - now <= ttl or owner.machine == _machine():
        return first is not None
    deadline = time.monotonic() + ttl
    while time.monotonic() < deadline:
        time.sleep(ttl / 20)
        if (latest := _mtime(path / owner.filename)) != first:
            return latest is not None
    return False


def _mtime(file: Path) -> float | None:
    """When a file was last touched; None where it is gone. Opening makes an NFS client ask for the true time."""
    try:
        with file.open() as opened:
            return os.fstat(opened.fileno()).st_mtime
    except FileNotFoundError:
        return None


def _server_time(path: Path) -> float:
    """The clock of the file system that `path` is on, read off a freshly made file."""
    probe = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with writing(path):
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()


def _beat(file: Path, every: float, stop: threading.Event) -> None:
    while not stop.wait(every):
        with suppress(OSError):
            os.utime(file)


@functools.cache
def _machine() -> str:
    """This boot of this machine and this process namespace: where a process id means something."""
    marks = socket.gethostname()
    with suppress(OSError):
        marks += Path("/proc/sys/kernel/random/boot_id").read_text()
        marks += str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(marks.encode()).hexdigest()[:12]


def _started(pid: int) -> str:
    """When a process began, in clock ticks since boot; "" where /proc does not say."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on: state first, start time at index 19."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _runs(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    fields = _stat(pid)
    return not fields or (fields[0] not in "ZX" and fields[19] == started)
