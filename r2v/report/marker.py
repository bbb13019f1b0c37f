"""Marker of a report, `.r2v`: the fingerprint of its inputs, and the SHA-256 of each of its files.

    report
    <fingerprint>  .
    <SHA-256>  data/frontier.csv
    <SHA-256>  index.html

A report of the same fingerprint whose files are all as listed is up to date. A report of an earlier version
lists names alone, so it is made again.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from r2v.report.sources import Sources
from r2v.storage.artifact_manifest import code_identity, json_sha256, plain_files
from r2v.storage.files import write_text
from r2v.storage.integrity import content_files, current_sha256
from r2v.storage.removal import OWN, Marker, is_own

REPORT_MARKER = Marker(kind="report")


def fingerprint_of(results: Path, sources: Sources, *, figures: bool) -> str:
    """Return the hash of a report's inputs: the results, other files, R2V's code and matplotlib's version.
    `figures`: True if it has figures for a paper."""
    assets = files("r2v.report").joinpath("assets")
    return json_sha256(
        {
            "results": {name: current_sha256(results / name) for name in plain_files(results) if name[-1] != "/"},
            "tables": sources.sha256,
            "stages": [asdict(stage) for stage in sources.stages],
            "shown": [sources.missing, sources.preference, sources.audit, figures],
            "code": [code_identity(), *sorted(asset.read_text() for asset in assets.iterdir())],
            "matplotlib": version("matplotlib"),
        }
    )


def write_marker(folder: Path, fingerprint: str) -> None:
    """Write the marker of a finished report."""
    lines = [f"{digest}  {name}\n" for name, digest in {".": fingerprint, **content_files(folder)}.items()]
    write_text(folder / OWN, "".join((f"{REPORT_MARKER.kind}\n", *lines)))


def read_marker(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the fingerprint of a report and the SHA-256 of each file by its name; "" for those that are not listed."""
    lines = [line.rpartition("  ") for line in (folder / OWN).read_text().splitlines()[1:]]
    listed = {name: digest for digest, _, name in lines}
    return listed.pop(".", ""), listed


def is_current(folder: Path, fingerprint: str) -> bool:
    """True if `folder` holds a report of this fingerprint and every file is unchanged."""
    return is_own(folder, REPORT_MARKER) and read_marker(folder) == (fingerprint, content_files(folder))
