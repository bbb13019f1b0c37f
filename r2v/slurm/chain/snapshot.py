"""The snapshot of a submission: its code and configuration, in a folder named by the hash of its content.

    chain = pin(root, chain, config)                # outputs/.snapshots/<id>/, and a link to it in the chain's folder
    code_lines(name)                                # lines of a job's script that put the snapshot on its search path

It holds the tracked and the untracked, unignored files of the checkout that are code or configuration or lie in a
Python package; the running R2V, wherever it is installed; and the modules that a configuration names. It comes first on
a job's search path. `run_all --live` takes none: jobs run the checkout as it is when they start, and log a change.
Other installed packages are in no snapshot.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from r2v.config import Config
from r2v.errors import UsageError
from r2v.extensions import is_dotted, source_file
from r2v.log import logger
from r2v.slurm.chain.chain import Chain, folder
from r2v.storage.artifact_manifest import OWN_PACKAGE, SNAPSHOT_RECORD, code_identity, git_commit
from r2v.storage.files import write_json, writing
from r2v.storage.paths import LOGS, ROOMS, SNAPSHOTS
from r2v.storage.removal import SNAPSHOT_MARKER, remove_own

LARGEST_SNAPSHOT = 20 << 20
"""Maximum bytes of a snapshot: every submission may leave one, and jobs read it over the network."""
CODE_LINK = "code"
"""Link in a chain's folder to the code that its jobs run."""
_CODE = (".py", ".pyi", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".sh", ".j2", ".jinja", ".jinja2")
_LEFT_OUT = (*ROOMS, str(LOGS), "__pycache__", "node_modules", "site-packages")


@dataclass(frozen=True, kw_only=True)
class CodeSnapshot:
    """The content of `snapshot.json`: a hash of the files, their number and bytes, and the commit checked out."""

    id: str
    files: int
    bytes: int
    commit: str | None
    dirty: bool


def pin(root: Path, chain: Chain, config: Config, *, live: bool = False, queued: Chain | None = None) -> Chain:
    """Return the chain with its jobs pinned to the present code and configuration, or to none if `live`. A chain with
    jobs in the queue (`queued`) keeps the code of their submission. Raises UsageError if the snapshot is too large."""
    if queued is not None:
        if not live and queued.snapshot not in (None, present_id := _id_of(_held(root, config))):
            logger.warning(
                "queued jobs keep the code of their submission: chain=%s submitted=%s checkout=%s remedy=%s",
                *(chain.name, queued.snapshot, present_id, f"r2v resume {chain.name}"),
            )
        code_fields = {name: getattr(queued, name) for name in ("snapshot", "code", "commit", "dirty")}
        return replace(chain, **code_fields)
    with writing(root / SNAPSHOTS):
        snapshot = None if live else take(root, config)
        link = folder(root, chain.name) / CODE_LINK
        _point(link, root if snapshot is None else root / SNAPSHOTS / snapshot.id)
    commit, dirty = _commit(root)
    id_ = None if snapshot is None else snapshot.id
    return replace(chain, snapshot=id_, code=code_identity(), commit=commit, dirty=dirty)


def _point(link: Path, target: Path) -> None:
    """Make a link to a folder, atomically; it is relative, so that the checkout can be moved."""
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()))
    fresh.replace(link)


def code_lines(name: str) -> list[str]:
    """Return the lines of a job's script that put the chain's code first on Python's search path. PYTHONSAFEPATH keeps
    the working folder off it: R2V adds that last."""
    link = shlex.quote(str(folder(Path(), name) / CODE_LINK))
    return [
        f"if [ -e {link} ]; then",
        f'  export PYTHONSAFEPATH=1 PYTHONPATH="$(readlink -f {link})${{PYTHONPATH:+:$PYTHONPATH}}"',
        "fi",
    ]


def take(root: Path, config: Config) -> CodeSnapshot:
    """Return the snapshot of the present files, made if none has this content. Raises UsageError with the largest files
    if it is too large; NotOurs if a folder of that name lacks a snapshot's record."""
    held = _held(root, config)
    sizes = {name: path.stat().st_size for name, path in held.items()}
    if (total := sum(sizes.values())) > LARGEST_SNAPSHOT:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        raise UsageError(
            f"the code and configuration to submit are {total / 2**20:.0f} MB, at most {LARGEST_SNAPSHOT >> 20} are "
            f"kept: the largest are {', '.join(largest)}; have git ignore what is no code, or submit with --live"
        )
    id_ = _id_of(held)
    commit, dirty = _commit(root)
    snapshot = CodeSnapshot(id=id_, files=len(held), bytes=total, commit=commit, dirty=dirty)
    target = root / SNAPSHOTS / id_
    if target.exists() and _id_of({name: target / name for name in held}) != id_:
        remove_own(target, SNAPSHOT_MARKER)
    if not target.exists():
        _write(target, held, snapshot)
    return snapshot


def _held(root: Path, config: Config) -> dict[str, Path]:
    """Return every file of a snapshot by its name in it."""
    return dict(sorted({**_checkout(root), **_named(config), **_installed()}.items()))


def _write(target_folder: Path, held: Mapping[str, Path], snapshot: CodeSnapshot) -> None:
    """Copy into a temporary folder, then rename it: jobs see a snapshot whole or not at all."""
    draft = target_folder.with_name(f".{target_folder.name}-{os.getpid()}")
    for name, path in held.items():
        target = draft / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
        if path.suffix == ".py":  # with the bytecode, so that the first job need not compile
            compiled, into = (Path(importlib.util.cache_from_source(str(source))) for source in (path, target))
            with suppress(OSError):  # a missing cache costs only time
                into.parent.mkdir(exist_ok=True)
                shutil.copy2(compiled, into)
    write_json(draft / SNAPSHOT_RECORD, asdict(snapshot))
    try:
        draft.rename(target_folder)
    except OSError:
        if not target_folder.exists():
            raise
        remove_own(draft, SNAPSHOT_MARKER)  # a concurrent submission made the same snapshot


def _id_of(held: Mapping[str, Path]) -> str:
    content = hashlib.sha256()
    for name, path in held.items():
        try:
            data = path.read_bytes()
        except OSError:  # a damaged snapshot equals no id and is made anew
            return ""
        content.update(f"{name}\0{path.stat().st_mode & 0o100:o}\0".encode() + hashlib.sha256(data).digest())
    return content.hexdigest()[:12]


def _installed() -> dict[str, Path]:
    """Return the files of the running R2V."""
    return {f"r2v/{path.relative_to(OWN_PACKAGE).as_posix()}": path for path in _files(OWN_PACKAGE)}


def _checkout(root: Path) -> dict[str, Path]:
    """Return the code files of the checkout, by their names in it."""
    listed = (path for path in _listed(root) if not set(path.parts[:-1]) & set(_LEFT_OUT))
    return {path.as_posix(): root / path for path in listed if _is_code(root, path) and (root / path).is_file()}


def _listed(root: Path) -> Iterable[Path]:
    """Return the files that git tracks, or neither tracks nor ignores; every file without git."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        done = None
    if done is not None and done.returncode == 0:
        return [Path(name) for name in done.stdout.split("\0") if name]
    return [path.relative_to(root) for path in _files(root)]


def _files(top: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _LEFT_OUT)
        if (Path(at) / "pyvenv.cfg").exists():
            folders[:] = []
            continue
        yield from (Path(at, name) for name in sorted(names) if not name.startswith("."))


def _is_code(root: Path, path: Path) -> bool:
    """True if a file is code or configuration by its suffix, or lies in a Python package, as package data."""
    return path.suffix in _CODE or len(path.parts) > 1 and (root / path.parts[0] / "__init__.py").is_file()


def _named(config: Config) -> dict[str, Path]:
    """Return the modules that the configuration names, each with its whole package, installed packages excluded."""
    installed = [Path(path).resolve() for path in {sysconfig.get_path(key) for key in ("stdlib", "purelib", "platlib")}]
    held: dict[str, Path] = {}
    for spec in {word for word in _words(asdict(config)) if is_dotted(word)}:
        top = spec.partition(":")[0].partition(".")[0]
        source = source_file(f"{top}:any")
        if top == "r2v" or source is None or any(source.resolve().is_relative_to(folder) for folder in installed):
            continue
        package = source.parent if source.name == "__init__.py" else source if source.is_dir() else None
        if package is None:
            held[source.name] = source
        else:
            held |= {f"{top}/{path.relative_to(package).as_posix()}": path for path in _files(package)}
    return held


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _words(key)
            yield from _words(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _words(inner)
    elif isinstance(value, str):
        yield value


def _commit(root: Path) -> tuple[str | None, bool]:
    """Return R2V's commit, and True if files of the checkout differ from it."""
    commit = git_commit()
    command = ["git", "-C", str(root), "status", "--porcelain"]
    changed = commit and subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return commit, bool(changed)
