"""Installer of SWE-bench: packages for grading and tests, and the bundled instances, built from their recipes.

Downloads are checked by hash and repositories by the hash of their commits, so every machine gets the same instances.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from itertools import groupby
from pathlib import Path, PurePosixPath

from r2v.envs.swe.recipes import SWE_LOCKS, Recipe, added, commit, put_bug, recipes, record_of
from r2v.envs.swe.repositories import git
from r2v.errors import EnvironmentFault, InputError
from r2v.storage.files import write_lines
from r2v.storage.removal import Marker, make_own, remove_own

_PIP = [sys.executable, "-m", "pip"]
REPOSITORIES_MARKER = Marker(kind="repositories of SWE-bench")
_REPOSITORY = Marker(kind="repository of SWE-bench", file="", within=REPOSITORIES_MARKER)
"""Marker in the parent folder: git would commit one inside the repository."""
_LOCKED = ["--quiet", "--disable-pip-version-check", "--no-input", "--require-hashes", "--no-deps"]


def install(home: Path, *, say: Callable[[str], None]) -> int:
    """Fill `home` and return its number of instances; complete parts are kept. Raises EnvironmentFault if pip or git
    fails, InputError if a source does not give its recipe's commit."""
    for name in ("site", "grading"):
        if not (home / name).is_dir():
            say(f"installing {name}")
            _into(home / name, SWE_LOCKS / f"{name}.txt")
    done = home / "instances.jsonl"
    if not done.exists():
        with tempfile.TemporaryDirectory(prefix="r2v-") as folder:
            say("fetching the sources of the bundled instances")
            fetch(Path(folder))
            write_lines(done, list(_make_repositories(home / "repositories", Path(folder), say)))
    return len(done.read_text().splitlines())


def _into(folder: Path, requirements: Path) -> None:
    """Install into `folder`, which is created only when complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as draft:
        words = ["install", *_LOCKED, "--no-compile", "--only-binary", ":all:", "--target", f"{draft}/made"]
        _pip([*words, "-r", str(requirements)], f"cannot install {requirements.name}")
        Path(draft, "made").rename(folder)


def fetch(folder: Path) -> None:
    """Download the source distributions; pip refuses one with another hash."""
    words = ["download", *_LOCKED, "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder)]
    _pip([*words, "-r", str(SWE_LOCKS / "sources.txt")], "cannot download the sources")


def _pip(words: list[str], problem: str) -> None:
    done = subprocess.run([*_PIP, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "rror" in line] or [done.stderr[-200:]]
        raise EnvironmentFault(f"{problem}: {' '.join(lines[-1].split())[:300]}")


def _make_repositories(repositories: Path, sources: Path, say: Callable[[str], None]) -> list[str]:
    """Make the repositories of all instances and return the instances' lines."""
    make_own(repositories, REPOSITORIES_MARKER)
    lines = []
    for (package, version), group in groupby(recipes(), lambda recipe: (recipe.package, recipe.version)):
        say(f"making {package} {version}")
        tree = repositories / package
        source = begin(tree, sources / f"{package}-{version}.tar.gz")
        for recipe in group:
            lines.append(_instance(tree, recipe, source))
        git(["checkout", "--quiet", "--detach", source], tree)
    return lines


def _instance(tree: Path, recipe: Recipe, source: str) -> str:
    base = put_bug(tree, recipe, source)
    if base != recipe.base_commit:
        raise InputError(f"{recipe.instance_id}: got commit {base}, its recipe has {recipe.base_commit}; report it")
    record = record_of(recipe, f"repositories/{tree.name}", added(tree, recipe.tests, source))
    return json.dumps(record, ensure_ascii=False)


def begin(tree: Path, archive: Path) -> str:
    """Make a repository with a source distribution as its one commit and return the commit's hash. An unfinished
    repository is replaced. Raises NotOurs if `tree` exists outside a folder with REPOSITORIES_MARKER."""
    remove_own(tree, _REPOSITORY)
    tree.mkdir(parents=True)
    git(["init", "--quiet", "--template=", "."], tree)
    with tarfile.open(archive) as opened:
        for entry in opened:
            inner = PurePosixPath(*PurePosixPath(entry.name).parts[1:])
            if entry.isfile() and inner.parts and not inner.is_absolute() and ".." not in inner.parts:
                path = tree / inner
                path.parent.mkdir(parents=True, exist_ok=True)
                file = opened.extractfile(entry)
                assert file is not None  # it is a file
                path.write_bytes(file.read())
                path.chmod(0o755 if entry.mode & 0o100 else 0o644)
    return commit(tree, archive.name)
