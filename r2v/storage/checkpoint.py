"""Checkpoints on disk: numbered folders with a hash of each of their files, and a link to the newest.

    checkpoint-<n>/...              what a training writes
    checkpoint-<n>/sha256.json      the hash of each file, written last
    checkpoint-latest               a link, moved when all of that is on the disk

What is resumed from is what was written: the hashes are checked first. A checkpoint that is damaged (a power cut, a
flipped bit, a file gone) is passed over with a line for the one before it; where none is whole, training begins again.
A training that is a function of its seed ends in the same bytes either way.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from r2v.errors import InputError, R2VError, failure_of
from r2v.storage.file_system import share, steadily, sync_folder
from r2v.storage.files import write_json, writing
from r2v.storage.removal import ATTEMPT_MARKER, Marker, NotOurs, remove_own

log = logging.getLogger(__name__)

LATEST = "checkpoint-latest"
SEAL = "sha256.json"
"""In a checkpoint: path (relative to it) -> hex SHA-256."""
CHECKPOINT_MARKER = Marker(kind="checkpoint", file=SEAL, within=ATTEMPT_MARKER)
KEPT = 2

_NAME = re.compile(r"checkpoint-(\d+)")
_PROBE_BYTES = 1 << 20
_WRITER_TEXTS = re.compile(r"os error \d+|No space left|File too large|PytorchStreamWriter|inline_container")


def seal(folder: Path, beside: Iterable[Path] = ()) -> None:
    """Write the hashes of all files below `folder`, and of those `beside` it that it needs; when this returns all of
    them are on the disk."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SEAL]
    files += beside
    write_json(folder / SEAL, {os.path.relpath(path, folder): _synced_sha256(path) for path in files})
    for inner in {path.parent for path in files} | {folder, folder.parent}:
        sync_folder(inner)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, naming the file; None where every file is as it was written."""
    try:
        hashes = json.loads((folder / SEAL).read_bytes())
        expected = {str(name): str(value) for name, value in hashes.items()}
    except FileNotFoundError:
        return f"{folder / SEAL} is missing" if folder.is_dir() else f"{folder} is missing"
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        return f"{folder / SEAL} cannot be read ({type(error).__name__})"
    for name, recorded in expected.items():
        path = Path(os.path.normpath(folder / name))
        if not path.is_relative_to(folder.parent) or (path.exists() and not path.is_file()):
            return f"{path} is no file of this training"
        try:
            current = steadily(partial(_sha256, path))
        except (OSError, ValueError) as error:
            return f"{path} cannot be read ({getattr(error, 'strerror', None) or error})"
        if current != recorded:
            return f"{path} is not what was written (SHA-256 {current[:12]}, recorded {recorded[:12]})"
    return None


def settle(folder: Path, what: str) -> Path | None:
    """The checkpoint below `folder` that training resumes from: the newest whole one that is not newer than the link
    says. The link is moved to it, or removed where there is none, and a line says so. `what` names the training."""
    latest = folder / LATEST
    linked = latest.is_symlink() or latest.exists()
    most = _linked_number(latest) if linked else None
    problems: list[str] = []
    for number in sorted(numbers(folder) | ({most} if most is not None else set()), reverse=True):
        if most is not None and number > most:
            continue
        place = folder / f"checkpoint-{number}"
        problem = damage(place)
        if problem is None:
            if problems and linked:
                log.warning("  %s: %s; going on from %s", what, "; ".join(dict.fromkeys(problems)), place.name)
            if not linked or problems or most is None:
                point(folder, place)
            return place
        problems.append(problem)
    if linked:
        log.warning(
            "  %s: %s; beginning again", what, "; ".join(dict.fromkeys(problems)) or f"{latest} leads to no checkpoint"
        )
        _clear(latest)
    return None


def point(folder: Path, place: Path) -> None:
    """Move the link to the checkpoint `place`, atomically, once its name is on the disk."""
    latest = folder / LATEST
    if not latest.is_symlink() and latest.exists():
        _clear(latest)
    sync_folder(folder)
    fresh = folder / f".{LATEST}.{os.getpid()}.tmp"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(place.name)
    fresh.replace(latest)
    sync_folder(folder)


def forget(folder: Path, newest: int, *, later: bool = False) -> None:
    """Remove all checkpoints before `newest` but the last few; with `later` also those of a run that had come further
    than this one. A folder of that name that R2V did not make is kept, and a line names it."""
    present = sorted(numbers(folder))
    after, before = [n for n in present if n > newest], [n for n in present if n <= newest]
    for number in (after if later else []) + before[:-KEPT]:
        try:
            remove_own(folder / f"checkpoint-{number}", CHECKPOINT_MARKER)
        except NotOurs as error:
            log.warning("  %s", error)


def numbers(folder: Path) -> set[int]:
    """The numbers of the checkpoints that are there, whole or not."""
    names = (_NAME.fullmatch(path.name) for path in folder.glob("checkpoint-[0-9]*"))
    return {int(name[1]) for name in names if name is not None}


@contextmanager
def saving(place: Path, size: int = 0) -> Iterator[None]:
    """Turn whatever a library raises when the disk refuses to take a checkpoint into one EnvironmentFault.

    Libraries write from C++ and Rust, and lose the error number on the way. So the disk is asked again: for room as
    large as the checkpoint (`size` bytes). Their words decide only where the disk has none of it against us by then.
    """
    try:
        with writing(place):
            yield
    except (R2VError, MemoryError):
        raise
    except Exception as error:
        if failure_of(error)[0] not in ("bug", "input"):
            raise
        refusal = _refusal(place.parent, max(size, _PROBE_BYTES))
        text = " ".join(str(error).split())
        if refusal is None and not _WRITER_TEXTS.search(text):
            raise
        with writing(place):
            raise refusal or OSError(errno.ENOSPC, text) from error


@contextmanager
def resuming(place: Path | None, begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Turn what is raised while the checkpoint `place` is taken up, until training has `begun`, into one InputError:
    its files are as they were written, so something else wrote them."""
    try:
        yield
    except R2VError:
        raise
    except Exception as error:
        if place is None or begun() or failure_of(error)[0] not in ("bug", "input"):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{place}: is no checkpoint of this training ({text[:200]}); remove the checkpoints beside it to train anew"
        ) from error


def _refusal(folder: Path, size: int) -> OSError | None:
    """Why the disk would not take `size` bytes more in this folder; None where it would."""
    probe = folder / f".probe.{secrets.token_hex(4)}.tmp"
    try:
        with probe.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        return error
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return None


def _linked_number(latest: Path) -> int | None:
    name = _NAME.fullmatch(latest.readlink().name) if latest.is_symlink() else None
    return int(name[1]) if name else None


def _clear(latest: Path) -> None:
    """Take the link away. A real folder in its place (a copy that followed links) is put aside."""
    if latest.is_symlink():
        latest.unlink()
    elif latest.exists():
        latest.rename(latest.with_name(f"{LATEST}.{secrets.token_hex(4)}.quarantine"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _synced_sha256(path: Path) -> str:
    share(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
