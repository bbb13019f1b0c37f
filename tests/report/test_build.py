"""A report can be made again, copied, and asked for wrongly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from r2v import errors
from r2v.cli import main as cli
from r2v.report.build import build_report


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_made_again_it_is_the_same(micro_results: Path, micro_report: Path) -> None:
    before = contents(micro_report)
    assert build_report(micro_results, micro_report) == micro_report / "index.html"
    assert contents(micro_report) == before
    assert {name.split("/")[0] for name in before} == {
        "index.html",
        "llm_summary.json",
        "results.md",
        "data",
        "figures",
    }
    names = {"frontier", "success", "categories", "reliability", "ablations", "losses", "stages"}
    assert {f"{kind}/{name}.{end}" for name in names for kind, end in (("data", "csv"), ("figures", "pdf"))} <= set(
        before
    )


def test_a_copied_results_folder_is_enough_and_what_is_not_there_is_said(
    micro_results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "results" / "mine"
    shutil.copytree(micro_results, copied)
    assert cli.main(["report", str(copied)]) == 0
    report = tmp_path / "results" / "report" / "mine"
    assert f"file://{report}/index.html" in capsys.readouterr().out
    page = (report / "index.html").read_text()
    assert "not shown: ablations" in page and "not shown: stages behind these results" in page
    assert not (report / "data" / "losses.csv").exists() and (report / "data" / "frontier.csv").exists()


@pytest.mark.parametrize(
    "what", ["nothing there", "no results", "a changed table", "no such ablations", "another folder"]
)
def test_what_is_no_results_folder_is_one_line(
    what: str, micro_results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, options = tmp_path / "results" / "mine", []
    if what == "no results":
        folder.mkdir(parents=True)
    elif what != "nothing there":
        shutil.copytree(micro_results, folder)
    if what == "a changed table":
        table = folder / "structured_results" / "main_table.csv"
        table.write_text(table.read_text().replace("r2v", "r3v"))
    if what == "no such ablations":
        options = ["--ablations", str(tmp_path / "none")]
    if what == "another folder":
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "thesis.tex").write_text("mine")
        options = ["--output", str(tmp_path / "work")]
    assert cli.main(["report", str(folder), *options]) == errors.InputError.exit_code
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and str(tmp_path) in said
    assert what != "another folder" or (tmp_path / "work" / "thesis.tex").read_text() == "mine"
    assert not (tmp_path / "results" / "report").exists()
