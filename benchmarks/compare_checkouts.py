"""Compare every content file that the MRP leaves in one checkout with another checkout's.

    python benchmarks/compare_checkouts.py OLD NEW            # compares the files of `make mrp` in both
    python benchmarks/compare_checkouts.py OLD NEW --run      # runs it in both first, by this Python

For changes that must change no result. Run ids, clocks and the commit are ignored; manifests, which name the code and
the moment, are left out, and so are resolved configurations, which gain keys. Exit code 0: all files are equal; 1: some
differ, and each is named with its first different line.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from r2v.storage.files import content_sha256

ROOTS = ("data/mrp", "outputs/mrp", "results/mrp", "results/ablations/mrp")
IDENTITY = ("artifact.json", "attempt.meta.json", "config.yaml", "manifest.json", "run_manifest.json")
"""Files that name code, paths, moments or hashes of those that do."""
_COMMIT = re.compile(rb'"git_commit": ?"[0-9a-f]{40}"')


def files_of(checkout: Path) -> Iterator[tuple[str, Path]]:
    """Return (path below the checkout, file) of every content file, through the links that publish artifacts."""
    for root in ROOTS:
        for folder, _, names in os.walk(checkout / root, followlinks=True):
            for name in sorted(names):
                path = Path(folder) / name
                if name not in IDENTITY and "checkpoint" not in str(path) and "/tmp/" not in str(path):
                    yield path.relative_to(checkout).as_posix(), path


def same(old: Path, new: Path) -> bool:
    """True if two files are equal except for the commit that made them."""
    if content_sha256(old) == content_sha256(new):
        return True
    return _COMMIT.sub(b"", old.read_bytes()) == _COMMIT.sub(b"", new.read_bytes())


def first_difference(old: Path, new: Path) -> str:
    """Return the first line in which two text files differ, cut short, or a note that they are no text."""
    try:
        lines = zip_longest(old.read_text().splitlines(), new.read_text().splitlines(), fillvalue="(ends)")
        number, left, right = next((n, a, b) for n, (a, b) in enumerate(lines, start=1) if a != b)
    except (UnicodeDecodeError, StopIteration):
        return f"{old.stat().st_size} and {new.stat().st_size} bytes"
    at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
    begin = max(0, at - 40)
    return f"line {number}: ...{left[begin : at + 60]} | ...{right[begin : at + 60]}"


def main() -> int:
    """Compare the files and print the number of equal ones; 1 if any differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--run", action="store_true", help="run the MRP in both checkouts first")
    arguments = parser.parse_args()
    for checkout in (arguments.old, arguments.new) if arguments.run else ():
        environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        command = [sys.executable, "-m", "r2v", "run", "--config", "configs/mrp.yaml"]
        subprocess.run(command, cwd=checkout, env=environment, check=True)
    old, new = dict(files_of(arguments.old)), dict(files_of(arguments.new))
    differing = [name for name in sorted(old.keys() & new.keys()) if not same(old[name], new[name])]
    for name in differing:
        print(f"differs  {name}: {first_difference(old[name], new[name])}")
    for name in sorted(old.keys() ^ new.keys()):
        print(f"only in {'OLD' if name in old else 'NEW'}  {name}")
    print(
        f"{len(old.keys() & new.keys()) - len(differing)} files are the same, {len(differing)} differ, "
        f"{len(old.keys() ^ new.keys())} are in one checkout only"
    )
    return 1 if differing or old.keys() ^ new.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
