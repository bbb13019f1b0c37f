"""Table audit: every table is built again from the stored episodes and compared byte for byte.

This half of `r2v verify-results` needs no environment and no model; `check_episodes` plays the episodes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from r2v.evaluation.audit.findings import Findings
from r2v.evaluation.setup import Setup, read_setup, stored_episodes
from r2v.evaluation.tables.build import STRUCTURED, build_tables
from r2v.evaluation.tables.files import render, with_manifest


def check_tables(results: Path, setup: Setup, findings: Findings) -> int:
    """Hold the stored tables to those that the episodes give under a setup. Return the number of files."""
    try:
        texts = rebuild(results, setup)
    except Exception as error:  # a stranger's values may break any function; each also has a finding of its own
        findings.add("tables", f"cannot be built: {error}")
        return 0
    findings.extend("tables", (f"{name} is not what the episodes give" for name in differing(results, texts)))
    return len(texts)


def rebuild(results: Path, setup: Setup | None = None) -> dict[str, str]:
    """Return the text of every file of structured_results/, built from the stored episodes and a setup alone (default:
    the stored one)."""
    setup = setup or read_setup(results)
    return with_manifest(render(build_tables(stored_episodes(results, setup), setup).bundle()))


def differing(results: Path, texts: Mapping[str, str]) -> list[str]:
    """Return the files of structured_results/ that are missing, changed, or none of these texts."""
    folder = results / STRUCTURED
    stored = {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}
    changed = [name for name, text in texts.items() if not _holds(folder / name, text)]
    return [*changed, *sorted(stored.keys() - texts.keys())]


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()
