"""The snapshot of a submission: code and configuration as they were, in a folder named by its content.

    chain = pin(root, chain, config)                # outputs/.snapshots/<id>/, and a link to it in the chain's folder
    code_lines(name)                                # what a job's script does to run that, whatever was edited since

It holds what git tracks and what it neither tracks nor ignores, as far as that is code or configuration or lies in a
Python package; the R2V that runs, wherever it is installed; and the modules that a configuration names. It stands first
on a job's search path. `run_all --live` takes none: jobs run what is in the checkout when they start, and say so where
that has changed. What is installed beside R2V is in no snapshot.
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
"""Bytes of a snapshot at most."""
CODE_LINK = "code"
"""Link in a chain's folder to what its jobs run."""
_CODE = (".py", ".pyi", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".sh", ".j2", ".jinja", ".jinja2")
_LEFT_OUT = (*ROOMS, str(LOGS), "__pycache__", "node_modules", "site-packages")


@dataclass(frozen=True, kw_only=True)
class CodeSnapshot:
    """The content of `snapshot.json`: the id (of the content), how much it is, and the commit that was checked out."""

    id: str
    files: int
    bytes: int
    commit: str | None
    dirty: bool


def pin(root: Path, chain: Chain, config: Config, *, live: bool = False, queued: Chain | None = None) -> Chain:
    """The chain with its jobs pinned to the code and configuration as they are now; with `live` to none. Where jobs of
    it are in the queue, as `queued`, it stays with what those were submitted with. Raises UsageError where what is to
    be kept is too much."""
    if queued is not None:
        if not live and queued.snapshot not in (None, found := _id_of(_held(root, config))):
            logger.warning(
                "%s: its jobs in the queue run the code of their submission (%s), not what is here now (%s); "
                "to go on with that: r2v resume %s",
                *(chain.name, queued.snapshot, found, chain.name),
            )
        kept = {name: getattr(queued, name) for name in ("snapshot", "code", "commit", "dirty")}
        return replace(chain, **kept)
    with writing(root / SNAPSHOTS):
        snapshot = None if live else take(root, config)
        place = folder(root, chain.name) / CODE_LINK
        _point(place, root if snapshot is None else root / SNAPSHOTS / snapshot.id)
    commit, dirty = _commit(root)
    id_ = None if snapshot is None else snapshot.id
    return replace(chain, snapshot=id_, code=code_identity(), commit=commit, dirty=dirty)


def _point(place: Path, target: Path) -> None:
    """Make a link to a folder, atomically; it is relative, so that the checkout may be moved."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f".{place.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(os.path.relpath(target.resolve(), place.parent.resolve()))
    fresh.replace(place)


def code_lines(name: str) -> list[str]:
    """The lines of a job's script that put the chain's code first on Python's search path, and the folder of the job
    nowhere on it: R2V adds that itself, as the last."""
    link = shlex.quote(str(folder(Path(), name) / CODE_LINK))
    return [
        f"if [ -e {link} ]; then",
        f'  export PYTHONSAFEPATH=1 PYTHONPATH="$(readlink -f {link})${{PYTHONPATH:+:$PYTHONPATH}}"',
        "fi",
    ]


def take(root: Path, config: Config) -> CodeSnapshot:
    """The snapshot of what is here now, made where there is none of this content. Raises UsageError where it is larger
    than allowed, naming the largest files; NotOurs where a folder of that name lacks a snapshot's record."""
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
    place = root / SNAPSHOTS / id_
    if place.exists() and _id_of({name: place / name for name in held}) != id_:
        remove_own(place, SNAPSHOT_MARKER)
    if not place.exists():
        _write(place, held, snapshot)
    return snapshot


def _held(root: Path, config: Config) -> dict[str, Path]:
    """Every file of a snapshot by its name in it."""
    return dict(sorted({**_checkout(root), **_named(config), **_installed()}.items()))


def _write(place: Path, held: Mapping[str, Path], snapshot: CodeSnapshot) -> None:
    """Copy into a folder beside the place, and rename that: a snapshot is there whole or not at all."""
    draft = place.with_name(f".{place.name}-{os.getpid()}")
    for name, path in held.items():
        target = draft / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
        if path.suffix == ".py":  # compiled already, it need not be by the first job
            compiled, into = (Path(importlib.util.cache_from_source(str(one))) for one in (path, target))
            with suppress(OSError):
                into.parent.mkdir(exist_ok=True)
                shutil.copy2(compiled, into)
    write_json(draft / SNAPSHOT_RECORD, asdict(snapshot))
    try:
        draft.rename(place)
    except OSError:
        if not place.exists():
            raise
        remove_own(draft, SNAPSHOT_MARKER)  # another submission made the same one just now


def _id_of(held: Mapping[str, Path]) -> str:
    content = hashlib.sha256()
    for name, path in held.items():
        try:
            data = path.read_bytes()
        except OSError:
            return ""
        content.update(f"{name}\0{path.stat().st_mode & 0o100:o}\0".encode() + hashlib.sha256(data).digest())
    return content.hexdigest()[:12]


def _installed() -> dict[str, Path]:
    """The R2V that runs."""
    return {f"r2v/{path.relative_to(OWN_PACKAGE).as_posix()}": path for path in _files(OWN_PACKAGE)}


def _checkout(root: Path) -> dict[str, Path]:
    """The files of the checkout, by their names in it."""
    listed = (path for path in _listed(root) if not set(path.parts[:-1]) & set(_LEFT_OUT))
    return {path.as_posix(): root / path for path in listed if _is_code(root, path) and (root / path).is_file()}


def _listed(root: Path) -> Iterable[Path]:
    """The files that git tracks here, or neither tracks nor ignores; every file where there is no git."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
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
    """True if a file is code or configuration by its name, or lies in a Python package, whose data are its own."""
    return path.suffix in _CODE or len(path.parts) > 1 and (root / path.parts[0] / "__init__.py").is_file()


def _named(config: Config) -> dict[str, Path]:
    """The modules that the configuration names, with the whole package that each is in; what is installed aside."""
    installed = [Path(path).resolve() for path in {sysconfig.get_path(key) for key in ("stdlib", "purelib", "platlib")}]
    held: dict[str, Path] = {}
    for spec in {word for word in _words(asdict(config)) if is_dotted(word)}:
        top = spec.partition(":")[0].partition(".")[0]
        found = source_file(f"{top}:any")
        if top == "r2v" or found is None or any(found.resolve().is_relative_to(place) for place in installed):
            continue
        package = found.parent if found.name == "__init__.py" else found if found.is_dir() else None
        if package is None:
            held[found.name] = found
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
    """The commit that R2V is run from, and whether files of the checkout differ from it."""
    commit = git_commit()
    command = ["git", "-C", str(root), "status", "--porcelain"]
    changed = commit and subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return commit, bool(changed)
