"""Untrusted folders: which plain files lie in one that somebody else made, listed before any of them is opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from r2v.constraints import shown
from r2v.errors import InputError
from r2v.storage.artifact_manifest import Damaged

_MOST_FILES = 100_000
"""Entries of a folder: results and bundles have a few hundred."""


def plain_files(folder: Path) -> dict[str, int]:
    """Relative name -> size in bytes of every file below the folder, and 0 for every empty folder, named with a slash
    at its end. No link is followed. Raise Damaged for a link, a pipe or a device, InputError for more than 100,000
    files."""
    sizes: dict[str, int] = {}
    for name, status in _walk(folder):
        if stat.S_ISREG(status.st_mode):
            sizes[name] = status.st_size
        elif not stat.S_ISDIR(status.st_mode):
            raise Damaged(folder / shown(name), "it is a link, a pipe or a device; R2V puts none there")
        elif not any(os.scandir(folder / name)):
            sizes[f"{name}/"] = 0
        if len(sizes) > _MOST_FILES:
            raise InputError(f"{folder}: holds more than {_MOST_FILES} files; results and bundles have a few hundred")
    return sizes


def _walk(folder: Path, stem: str = "") -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        status = entry.stat(follow_symlinks=False)
        yield stem + entry.name, status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(folder / entry.name, f"{stem}{entry.name}/")
