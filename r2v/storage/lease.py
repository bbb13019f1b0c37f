"""Lease: exclusive right to write, on any shared file system, without a server.

Not every NFS mount keeps `flock`, so a lease is a folder holding one file whose *name* is the owner.
Three operations, each atomic on the file server, suffice:

- take: rename a private folder, owner file inside, to the lease's path. It fails while the path is a folder
  that is not empty.
- take over: rename the dead owner's file to one's own name. Of many processes that try, one succeeds.
- release: remove the file of one's own name, which cannot hit another owner's.

A living holder touches its file (the heartbeat). A holder that died on this machine is recognized by process id and
start time and replaced at once; one on another machine is replaced when its file has not been touched for `ttl` seconds
of the file server's clock. A time further in the future than that (clock skew or garbage) gives no age: the process
that wants the lease then watches the file for a heartbeat, at most `ttl` seconds. Other files in the folder (of an NFS
client, a file browser) hold no lease; taking a free lease moves them aside.
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
    """Holder of a lease: a process. The name of its file is these fields, joined by commas."""

    host: str
    machine: str
    pid: int
    started: str
    job: str
    token: str

    @classmethod
    def here(cls) -> Owner:
        """Return this process as an owner with a fresh token."""
        return cls.of_process(os.getpid())

    @classmethod
    def of_process(cls, pid: int) -> Owner:
        """Return a process of this machine as an owner with a fresh token."""
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
        """Name of the owner's file."""
        return ",".join(map(str, astuple(self)))

    @classmethod
    def of(cls, filename: str) -> Owner | None:
        """Return the owner of a file name; None for other files, such as .nfs0001 or .DS_Store."""
        match = _OWNER.fullmatch(filename)
        if match is None:
            return None
        host, machine, pid, started, job, token = match.groups()
        return cls(host=host, machine=machine, pid=int(pid), started=started, job=job, token=token)

    @property
    def lives(self) -> bool | None:
        """True if this process, and not a later one with its id, still runs; None on another machine."""
        return _runs(self.pid, self.started) if self.machine == _machine() else None

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}" + (f" (Slurm job {self.job})" if self.job else "")


@contextmanager
def lease(path: Path, *, ttl: float = 60.0, wait: float = 0.0) -> Iterator[Owner]:
    """Hold the lease at `path` (a folder that exists only while held) during the block.

    ttl: seconds without a heartbeat after which a holder on another machine counts as dead.
    wait: seconds to wait for a living holder before giving up.
    Raise LeaseConflict if another process holds it, or took it while this one was suspended for longer than `ttl`.
    """
    me = Owner.here()
    deadline, pause = time.monotonic() + wait, 0.01
    while (other := _attempt(path, me, ttl)) is not None:
        if time.monotonic() >= deadline:
            remedy = f"scancel {other.job}" if other.job else f"kill {other.pid}"
            raise LeaseConflict(
                f"{path} is held by {other}; wait until it ends or stop it: {remedy}", slurm_job=other.job
            )
        # Back off to 0.2 s: a short hold is noticed at once, a long one costs the file server five look-ups a second.
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(0.2, 1.5 * pause)
    stop = threading.Event()
    # Four heartbeats per ttl: one that is late or lost costs no lease.
    threading.Thread(target=_beat, args=(path / me.filename, ttl / 4, stop), daemon=True).start()
    try:
        yield me
        confirm(path, me)
    finally:
        stop.set()
        _release(path, me)


def holder(path: Path, *, ttl: float = 60.0) -> Owner | None:
    """Return the living holder of the lease at `path`, or None, without taking it or waiting for a heartbeat."""
    owner = _current(path)
    return None if owner is None or _stale(path, owner, ttl, _server_time(path)) else owner


def confirm(path: Path, me: Owner) -> None:
    """Raise LeaseConflict if the lease is no longer held by `me`; call it before publishing."""
    if not (path / me.filename).exists():
        raise LeaseConflict(
            f"{path} was taken by {_current(path) or 'another process'} while {me} stood still; "
            "run the same command again"
        )


def _attempt(path: Path, me: Owner, ttl: float) -> Owner | None:
    """Try to take the lease once; return None on success, otherwise its holder."""
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
    """Move the private folder to the lease's path; return False if another holder's is there."""
    try:
        private.rename(path)
    except OSError as error:
        # An NFS client may report failure of a rename that the server has done, so look.
        occupied = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        if error.errno not in occupied and not (path / me.filename).exists():
            raise
        return (path / me.filename).exists()
    return True


def _take_over(path: Path, dead: Owner, me: Owner) -> bool:
    """Rename the dead owner's file to the name of `me`; return True on success."""
    with suppress(FileNotFoundError):  # another process took it over first
        os.utime(path / dead.filename)  # fresh before the rename, so that no process finds the new owner stale
        (path / dead.filename).rename(path / me.filename)
    return (path / me.filename).exists()


def _clear(path: Path) -> None:
    """Move foreign files out of a free lease. Each step fails rather than hit a lease taken meanwhile: only names of no
    owner are moved, and a file in the folder's place by link and unlink, which refuse folders."""
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
    except (PermissionError, IsADirectoryError):  # another process replaced the file by its lease
        if strays == [path] and path.is_dir():
            return
        raise
    if strays:
        names = ",".join(ascii(file.name)[1:-1] for file in strays)
        log.warning("foreign files moved out of a lease: lease=%s moved_to=%s files=%s", path, aside.name, names)


def _release(path: Path, me: Owner) -> None:
    with suppress(FileNotFoundError):  # taken over while this process was suspended
        (path / me.filename).unlink()
    with suppress(OSError):  # not empty: another process has taken it
        path.rmdir()


def _current(path: Path) -> Owner | None:
    try:
        return next((owner for file in path.iterdir() if (owner := Owner.of(file.name))), None)
    except (FileNotFoundError, NotADirectoryError):  # free, or a stray file that _clear moves
        return None


def _stale(path: Path, owner: Owner, ttl: float, now: float) -> bool:
    """True if the owner is dead. `now`: the file server's time."""
    if owner.machine == _machine():
        return not _runs(owner.pid, owner.started)
    touched = _mtime(path / owner.filename)
    return touched is None or now - touched > ttl


def _beats(path: Path, owner: Owner, ttl: float, now: float) -> bool:
    """True if an owner with a fresh time is alive: its time is near or before `now`, or a heartbeat follows within
    `ttl` (four are due). A time in the future is no evidence; a change of it is, on any clock."""
    first = _mtime(path / owner.filename)
    if first is None or first - now <= ttl or owner.machine == _machine():
        return first is not None
    deadline = time.monotonic() + ttl
    while time.monotonic() < deadline:
        time.sleep(ttl / 20)  # five looks between two heartbeats
        if (latest := _mtime(path / owner.filename)) != first:
            return latest is not None
    return False


def _mtime(file: Path) -> float | None:
    """Return the time at which a file was last touched, or None if it is gone."""
    try:
        with file.open() as opened:  # opening makes an NFS client ask the server for the time
            return os.fstat(opened.fileno()).st_mtime
    except FileNotFoundError:
        return None


def _server_time(path: Path) -> float:
    """Return the clock of the file system that holds `path`, read from a new file."""
    probe = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with writing(path):
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()


def _beat(file: Path, every: float, stop: threading.Event) -> None:
    while not stop.wait(every):
        with suppress(OSError):  # a missed beat is not yet a lost lease; `confirm` decides
            os.utime(file)


@functools.cache
def _machine() -> str:
    """Return 12 hex digits of this machine, boot and process namespace, the scope of a process id."""
    marks = socket.gethostname()
    with suppress(OSError):
        marks += Path("/proc/sys/kernel/random/boot_id").read_text()
        marks += str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(marks.encode()).hexdigest()[:12]


def _started(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot, or "" without /proc."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third on: state first, start time at index 19."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _runs(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs under another user
        pass
    fields = _stat(pid)
    return not fields or (fields[0] not in "ZX" and fields[19] == started)
