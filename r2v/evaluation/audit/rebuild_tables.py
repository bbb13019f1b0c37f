"""Table audit: every table is built again from the stored episodes and compared byte for byte.

This is the half of `r2v verify-results` that needs no environment; `replay` executes the episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from r2v.evaluation.tables.build import STRUCTURED, read_tables
from r2v.evaluation.tables.files import render, with_manifest


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What rebuilding found. `differing` names files that are missing, changed, or not of this evaluation."""

    results: Path
    num_files: int
    differing: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Whether every table is byte for byte what its episodes say."""
        return not self.differing


def rebuild(results: Path) -> dict[str, str]:
    """The text of every file of structured_results/, from the stored episodes and setup alone."""
    return with_manifest(render(read_tables(results).bundle()))


def verify_tables(results: Path) -> VerifyReport:
    """Compare every stored table with what the episodes give."""
    texts = rebuild(results)
    folder = results / STRUCTURED
    stored = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    differing = [name for name, text in texts.items() if not _same(folder / name, text)]
    return VerifyReport(results=results, num_files=len(texts), differing=(*differing, *sorted(stored - texts.keys())))


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()
