"""A report is up to date while its inputs and its files are unchanged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from r2v.report.marker import REPORT_MARKER, fingerprint_of, is_current, read_marker, write_marker
from r2v.report.sources import read_sources
from r2v.storage.removal import OWN, make_own


def test_a_fingerprint_tells_results_options_and_audits_apart(micro_results: Path, tmp_path: Path) -> None:
    ablations = micro_results.parent / "ablations" / "micro"
    results = shutil.copytree(micro_results, tmp_path / "results" / "mine")
    sources = read_sources(results)

    def fingerprints() -> list[str]:
        return [
            fingerprint_of(results, sources, figures=False),
            fingerprint_of(results, sources, figures=True),
            fingerprint_of(results, read_sources(results, ablations), figures=False),
            fingerprint_of(results, read_sources(results, verified={results: "abc, today"}), figures=False),
            fingerprint_of(results, replace(sources, preference="off"), figures=False),
        ]

    before = fingerprints()
    assert fingerprints() == before
    [path, *_] = sorted((results / "episodes").rglob("*.zst"))
    path.unlink()
    (results / "empty").mkdir()
    assert len({*before, *fingerprints()}) == 2 * len(before)


def test_a_changed_a_missing_and_a_new_file_are_noticed(tmp_path: Path) -> None:
    folder = make_own(tmp_path / "page", REPORT_MARKER)
    (folder / "index.html").write_text("<h1>Report</h1>")
    write_marker(folder, "abc")
    assert read_marker(folder)[0] == "abc" and is_current(folder, "abc")
    assert not is_current(folder, "def") and not is_current(tmp_path / "none", "abc")
    (folder / "more.csv").write_text("x")
    assert not is_current(folder, "abc")
    (folder / "more.csv").unlink()
    (folder / "index.html").rename(tmp_path / "moved.html")
    assert not is_current(folder, "abc")
    (folder / "index.html").write_text("<h1>Repost</h1>")
    assert not is_current(folder, "abc")


def test_a_marker_of_an_earlier_version_lists_names_and_is_never_current(tmp_path: Path) -> None:
    folder = make_own(tmp_path / "page", REPORT_MARKER)
    (folder / "index.html").write_text("<h1>Report</h1>")
    (folder / OWN).write_text("report\nindex.html\n")
    assert read_marker(folder) == ("", {"index.html": ""}) and not is_current(folder, "abc")
