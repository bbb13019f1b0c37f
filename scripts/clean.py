"""Remove the main job's results and the tools' caches (`make clean`); results of other benchmarks are kept.

A result is a link into outputs/.artifacts. An artifact is removed if the main job made it (its config.yaml has prefix
mrp) and no link of another benchmark leads to it; collected runs, data/runs, stay with the artifacts that name them. No
link is followed. Anything else among the results, the user's own links included, is kept, and a line names it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # R2V may not be installed in this Python

from r2v.storage.removal import ATTEMPT_MARKER, NotOurs, remove_own

CACHES = ("site", "build", "dist", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache")
PLACES = ("data/mrp", "outputs/mrp", "results/mrp", "results/ablations/mrp")
ARTIFACTS = "outputs/.artifacts"


def unpublish(path: Path, store: Path) -> None:
    """Remove the links into the store at and below a path, and the folders that become empty."""
    if path.is_symlink():
        if Path(os.path.normpath(path.parent.resolve() / path.readlink())).parent == store.resolve():
            path.unlink()
        else:
            print(f"{path}: leads to no artifact of R2V; it is kept")
    elif path.is_dir():
        for child in sorted(path.iterdir()):
            unpublish(child, store)
        with suppress(OSError):  # not empty
            path.rmdir()
    elif path.exists():
        print(f"{path}: is no result of R2V; it is kept")


def remove_cache(path: Path) -> None:
    """Remove a tool's cache."""
    if path.is_symlink():
        print(f"{path}: is a link; it is kept")
    elif path.exists():
        shutil.rmtree(path, ignore_errors=True)


def linked(root: Path) -> set[Path]:
    """Return the artifacts that a link outside of the artifacts' own folder leads to."""
    folders = [path for top in ("data", "outputs", "results") for path in (root / top).glob("*") if path.name[0] != "."]
    links = (path for folder in folders for path in (folder, *folder.rglob("*")) if path.is_symlink())
    return {path.resolve() for path in links}


def main(root: Path) -> None:
    """Clean a checkout."""
    for name in PLACES:
        unpublish(root / name, root / ARTIFACTS)
    for name in CACHES:
        remove_cache(root / name)
    linked_artifacts = linked(root)
    for artifact in (root / ARTIFACTS).glob("*"):
        config = artifact / "config.yaml"
        ours = config.is_file() and re.search(r"^prefix: mrp$", config.read_text(), re.M)
        if ours and artifact.resolve() not in linked_artifacts and not artifact.name.startswith("collect-"):
            try:
                remove_own(artifact, ATTEMPT_MARKER)
            except NotOurs as error:
                print(error)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
