"""Checkpoints on disk: numbered folders with a hash of each of their files, and a link to the newest.

    checkpoint-<n>/...              files of the training
    checkpoint-<n>/sha256.json      hash of each file, written last
    checkpoint-latest               link, moved once all files are synced

Hashes are checked before resuming. A damaged checkpoint (a power cut, a flipped bit, a missing file) is logged and
skipped for the one before it; if none is whole, training starts again. A training that is a function of its seed ends
in the same bytes either way.
"""

from __future__ import annotations

import errno
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
from r2v.storage.files import file_sha256, write_json, writing
from r2v.storage.removal import ATTEMPT_MARKER, Marker, NotOurs, remove_own

log = logging.getLogger(__name__)

LATEST = "checkpoint-latest"
SEAL = "sha256.json"
"""File of a checkpoint: path relative to it -> hex SHA-256."""
CHECKPOINT_MARKER = Marker(kind="checkpoint", file=SEAL, within=ATTEMPT_MARKER)
KEPT = 2

_NAME = re.compile(r"checkpoint-(\d+)")
_PROBE_BYTES = 1 << 20  # 1 MiB at least: a full disk may still take small files
_WRITER_TEXTS = re.compile(r"os error \d+|No space left|File too large|PytorchStreamWriter|inline_container")


def seal(folder: Path, beside: Iterable[Path] = ()) -> None:
    """Sync all files below `folder`, and those `beside` it that it needs, to disk and write their hashes."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SEAL]
    files += beside
    write_json(folder / SEAL, {os.path.relpath(path, folder): _synced_sha256(path) for path in files})
    for inner in {path.parent for path in files} | {folder, folder.parent}:
        sync_folder(inner)


def damage(folder: Path) -> str | None:
    """Return the first defect of a checkpoint, naming the file, or None."""
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
            current = steadily(partial(file_sha256, path))
        except (OSError, ValueError) as error:
            return f"{path} cannot be read ({getattr(error, 'strerror', None) or error})"
        if current != recorded:
            return f"{path} is not what was written (SHA-256 {current[:12]}, recorded {recorded[:12]})"
    return None


def newest_whole(folder: Path, what: str) -> Path | None:
    """Return the checkpoint to resume from: the newest whole one not newer than the link's, or None.

    The link is moved to it, or removed, and the change is logged. `what`: name of the training.
    """
    latest = folder / LATEST
    linked = latest.is_symlink() or latest.exists()
    most = _linked_number(latest) if linked else None
    problems: list[str] = []
    for number in sorted(numbers(folder) | ({most} if most is not None else set()), reverse=True):
        if most is not None and number > most:
            continue
        checkpoint = folder / f"checkpoint-{number}"
        problem = damage(checkpoint)
        if problem is None:
            if problems and linked:
                reason = "; ".join(dict.fromkeys(problems))
                log.warning("  checkpoint skipped: training=%s resume=%s reason=%s", what, checkpoint.name, reason)
            if not linked or problems or most is None:
                point(folder, checkpoint)
            return checkpoint
        problems.append(problem)
    if linked:
        reason = "; ".join(dict.fromkeys(problems)) or f"{latest} leads to no checkpoint"
        log.warning("  training restarted without a checkpoint: training=%s reason=%s", what, reason)
        _clear(latest)
    return None


def point(folder: Path, checkpoint: Path) -> None:
    """Move the link to `checkpoint`, atomically, once its name is on the disk."""
    latest = folder / LATEST
    if not latest.is_symlink() and latest.exists():
        _clear(latest)
    sync_folder(folder)
    fresh = folder / f".{LATEST}.{os.getpid()}.tmp"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(checkpoint.name)
    fresh.replace(latest)
    sync_folder(folder)


def forget(folder: Path, newest: int, *, later: bool = False) -> None:
    """Remove old checkpoints except the last two up to `newest`; with `later` also those after it, of a run that had
    come further. A folder of such a name that R2V did not make is kept and logged."""
    present = sorted(numbers(folder))
    after, before = [n for n in present if n > newest], [n for n in present if n <= newest]
    for number in (after if later else []) + before[:-KEPT]:
        try:
            remove_own(folder / f"checkpoint-{number}", CHECKPOINT_MARKER)
        except NotOurs as error:
            log.warning("  checkpoint kept: error=%s", error)


def numbers(folder: Path) -> set[int]:
    """Return the numbers of the checkpoints present, whole or not."""
    names = (_NAME.fullmatch(path.name) for path in folder.glob("checkpoint-[0-9]*"))
    return {int(name[1]) for name in names if name is not None}


@contextmanager
def saving(checkpoint: Path, size: int = 0) -> Iterator[None]:
    """Raise one EnvironmentFault for any error that a library raises when the disk refuses a checkpoint.

    Libraries write from C++ and Rust and lose errno on the way, so the disk is probed again for the checkpoint's `size`
    in bytes. The text of the library's error decides only if that probe succeeds.
    """
    try:
        with writing(checkpoint):
            yield
    except (R2VError, MemoryError):
        raise
    except Exception as error:
        if failure_of(error)[0] not in ("bug", "input"):
            raise
        refusal = _refusal(checkpoint.parent, max(size, _PROBE_BYTES))
        text = " ".join(str(error).split())
        if refusal is None and not _WRITER_TEXTS.search(text):
            raise
        with writing(checkpoint):
            raise refusal or OSError(errno.ENOSPC, text) from error


@contextmanager
def resuming(checkpoint: Path | None, begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Raise one InputError for any error while `checkpoint` is loaded, until training has `begun`: its hashes hold, so
    another training wrote it."""
    try:
        yield
    except R2VError:
        raise
    except Exception as error:
        if checkpoint is None or begun() or failure_of(error)[0] not in ("bug", "input"):
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{checkpoint}: is no checkpoint of this training ({text[:200]}); "
            "remove the checkpoints beside it to train anew"
        ) from error


def _refusal(folder: Path, size: int) -> OSError | None:
    """Return the disk's error for `size` more bytes in this folder, or None if it has the room."""
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
    """Remove the link; rename a real folder in its place (a copy that followed links) aside."""
    if latest.is_symlink():
        latest.unlink()
    elif latest.exists():
        latest.rename(latest.with_name(f"{LATEST}.{secrets.token_hex(4)}.quarantine"))


def _synced_sha256(path: Path) -> str:
    share(path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return file_sha256(path)
