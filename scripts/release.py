"""Build a release into dist/: the source distribution, the wheel, the bill of materials, and their SHA256SUMS.

    make release

The source distribution holds the files of HEAD, and the wheel is built from it, as a package index would. Only the
locked tools are read from the work tree, so an edited or stale file cannot get into a release.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build(source: Path, dist: Path) -> tuple[Path, Path]:
    """Build the source distribution of a clean source tree, and the wheel from it; return their paths below dist.

    setuptools writes its own files into the tree. Raises CalledProcessError if a build fails."""
    source, dist = source.resolve(), dist.resolve()
    dist.mkdir(parents=True, exist_ok=True)
    packed = dist / _built("sdist", source, dist)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        return packed, dist / _built("wheel", unpacked, dist)


def _built(kind: str, source: Path, dist: Path) -> str:
    """Build a distribution with setuptools and return its name: kind is sdist or wheel."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv.pop()))"
    command = [sys.executable, "-c", code, str(dist)]
    done = subprocess.run(command, cwd=source, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()[-1]


def main() -> None:
    """Write a new dist/."""
    dist = ROOT / "dist"
    for old in (*dist.glob("r2v-*"), *dist.glob("SHA256SUMS")):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive.stdout)
        build(Path(folder), dist)
    subprocess.run([sys.executable, str(ROOT / "scripts" / "sbom.py")], check=True)
    files = sorted(path for path in dist.iterdir() if path.name.startswith(("r2v-", "sbom")))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (dist / "SHA256SUMS").write_text("".join(sums))
    print("".join(sums), end="")


if __name__ == "__main__":
    main()
