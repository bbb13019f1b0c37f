"""`make clean`: remove the main job's results and the tools' caches. What other benchmarks made stays.

A result is a link into outputs/.artifacts. An artifact goes where the main job made it (its config.yaml has prefix mrp)
and no link of another benchmark leads to it; collected runs, data/runs, stay with the artifacts that name them.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

CACHES = ("site", "build", "dist", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache")
PLACES = ("data/mrp", "outputs/mrp", "results/mrp", "results/ablations/mrp")
ARTIFACTS = "outputs/.artifacts"


def remove(path: Path) -> None:
    """Remove a link, a file or a whole folder; nothing that a link leads to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def linked(root: Path) -> set[Path]:
    """The artifacts that a link outside of the artifacts' own folder leads to."""
    folders = [path for top in ("data", "outputs", "results") for path in (root / top).glob("*") if path.name[0] != "."]
    links = (path for folder in folders for path in (folder, *folder.rglob("*")) if path.is_symlink())
    return {path.resolve() for path in links}


def main(root: Path) -> None:
    """Clean a checkout."""
    for name in (*PLACES, *CACHES):
        remove(root / name)
    kept = linked(root)
    for artifact in (root / ARTIFACTS).glob("*"):
        config = artifact / "config.yaml"
        ours = config.is_file() and re.search(r"^prefix: mrp$", config.read_text(), re.M)
        if ours and artifact.resolve() not in kept and not artifact.name.startswith("collect-"):
            remove(artifact)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
