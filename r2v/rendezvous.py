"""Rendezvous of a launch's ranks through a file in a folder that only their owner can open.

    with locked(folder):                                  # in the launch; refuses an unsuitable folder
        ...
        make_group(folder / STORE_FILE, rank=1, ranks=2, backend="gloo", timeout=...)      # in each rank

Torch's default store is a server without a key that listens on every interface; its elastic agent unpickles any entry.
Here addresses, and the key of NCCL's connections, pass through torch's FileStore. Gloo's connections have no key: the
first process to connect is accepted as the expected rank. The ranks therefore prove to each other, over the connections
themselves, that they can read the folder, before a library may unpickle data from them.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from r2v.errors import EnvironmentFault
from r2v.rank_failures import died

STORE_FILE = "store"
"""Store file in a launch's folder."""
_LOCK_FILE = "lock"
_ARRIVAL_TIME, _PROOF_TIME = timedelta(minutes=15), timedelta(minutes=3)
_EVERY = 0.02
"""Seconds between two checks of the store."""


@contextmanager
def locked(folder: Path, remedy: str) -> Iterator[None]:
    """Hold a lock in the folder of a launch. Raises EnvironmentFault if others may open the folder, or its file system
    has no locks, without which FileStore's entries overwrite each other. `remedy`: end of the message."""
    status = folder.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise EnvironmentFault(
            f"the ranks would meet in {folder}, which others may open (mode {stat.S_IMODE(status.st_mode):04o}, owner "
            f"{status.st_uid}; needed is 0700, owner {os.geteuid()}): its file system keeps no modes; {remedy}"
        )
    with (folder / _LOCK_FILE).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EnvironmentFault(
                f"the ranks would meet in {folder}, whose file system has no locks ({error.strerror}); {remedy}"
            ) from None
        yield


def require_lock_seen(folder: Path) -> None:
    """Raise EnvironmentFault if the launch's lock in its folder is not effective on this node."""
    with (folder / _LOCK_FILE).open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            reason = "two nodes hold the same one"
        except BlockingIOError:
            return
        except OSError as error:
            reason = str(error.strerror)
    raise EnvironmentFault(f"the ranks would meet in {folder}, whose file system has no locks between nodes ({reason})")


def make_group(store_file: Path, *, rank: int, ranks: int, backend: str, timeout: timedelta) -> None:
    """Initialise torch's default process group, which other libraries use too. Raises EnvironmentFault if a rank does
    not arrive, or a connection leads to another process."""
    import torch.distributed as group

    store: Any = group.FileStore(str(store_file))  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    _await_all(store, rank, ranks)
    group.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
    if backend == "gloo" and ranks > 1:
        _prove_ranks(store, rank, ranks)


def _await_all(store: Any, rank: int, ranks: int) -> None:
    """Wait until every rank has arrived. Unlike a wait inside torch, it can be interrupted by a signal."""
    store.set(f"arrived/{rank}", "")
    deadline = time.monotonic() + _ARRIVAL_TIME.total_seconds()
    while missing := [other for other in range(ranks) if not store.check([f"arrived/{other}"])]:
        if time.monotonic() > deadline:
            raise EnvironmentFault(
                f"rank {rank} waited {_ARRIVAL_TIME} for ranks {missing}; run the same command again"
            )
        time.sleep(_EVERY)


def _prove_ranks(store: Any, rank: int, ranks: int) -> None:
    """Exchange codes that only readers of the store can compute. Each is valid for one direction of one connection, so
    that an intruder cannot use a received code on another."""
    import torch
    import torch.distributed as group

    key = bytes(store.compare_set("key", "", secrets.token_hex(32)))
    codes = b"".join(_code(key, rank, other) for other in range(ranks))
    sent = torch.frombuffer(bytearray(codes), dtype=torch.uint8)
    received = torch.empty_like(sent)
    try:
        group.all_to_all_single(received, sent, async_op=True).wait(_PROOF_TIME)
    except RuntimeError as error:
        raise _intruder(rank, " ".join(str(error).split())) from None
    if not hmac.compare_digest(received.numpy().tobytes(), b"".join(_code(key, other, rank) for other in range(ranks))):
        raise _intruder(rank, "a wrong code")


def _intruder(rank: int, reason: str) -> Exception:
    message = (
        f"rank {rank}: another process than a rank of this launch seems to have connected to it ({reason}); run the "
        "same command again"
    )
    return died(message, "rendezvous", "machine")


def _code(key: bytes, sender: int, receiver: int) -> bytes:
    return hmac.digest(key, f"{sender} to {receiver}".encode(), "sha256")
