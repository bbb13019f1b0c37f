"""A report can be made again and copied; wrong requests are refused."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from r2v import errors
from r2v.cli import main as cli
from r2v.config import load
from r2v.log import logger
from r2v.pipeline.report import report_of
from r2v.report.build import build_report, write_figure
from r2v.report.series import series
from r2v.report.sources import read_sources
from tests.trust import MICRO


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_made_again_it_is_the_same(micro_results: Path, micro_report: Path) -> None:
    before = contents(micro_report)
    assert build_report(micro_results, micro_report, force=True) == micro_report / "index.html"
    assert contents(micro_report) == before
    assert {name.split("/")[0] for name in before} == {
        ".r2v",
        "index.html",
        "llm_summary.json",
        "results.md",
        "data",
    }
    names = {"frontier", "success", "categories", "ranking", "reliability", "ablations", "losses", "stages"}
    assert {f"data/{name}.csv" for name in names} <= set(before)


def test_it_is_drawn_again_only_if_what_it_shows_or_a_file_of_it_has_changed(
    micro_results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, output = shutil.copytree(micro_results, tmp_path / "results" / "mine"), tmp_path / "mine"
    earlier = tmp_path / "earlier.html"

    def is_drawn() -> bool:
        assert cli.main(["report", str(results), "--output", str(output)]) == 0
        is_new = not (earlier.exists() and earlier.samefile(output / "index.html"))
        assert ("report           up to date" in capsys.readouterr().err) is not is_new
        earlier.unlink(missing_ok=True)
        earlier.hardlink_to(output / "index.html")
        return is_new

    assert is_drawn() and not is_drawn()
    (output / "results.md").write_text("edited")
    assert is_drawn() and (output / "results.md").read_text() != "edited"
    (results / "gains" / "noisy.jsonl").unlink()
    assert is_drawn() and not is_drawn()


def test_figures_for_a_paper_are_as_wide_as_its_column_with_text_of_eight_points(
    micro_results: Path, tmp_path: Path
) -> None:
    for name in ("frontier", "losses"):
        write_figure(name, series(read_sources(micro_results))[name], tmp_path, for_paper=True)
    drawn = {path.name: path for path in (tmp_path / "figures").iterdir()}
    wanted = ("frontier_noisy", "frontier_shift", "losses_bc", "losses_preference")
    assert set(drawn) == {f"{name}.{form}" for name in wanted for form in ("pdf", "svg")}
    for name, path in drawn.items():
        if name.endswith(".svg"):
            image = path.read_text()
            width = re.search(r'width="([0-9.]+)pt"', image)
            assert width is not None and float(width[1]) == pytest.approx(3.25 * 72)
            assert {float(size) for size in re.findall(r"font[^;]*?([0-9.]+)px", image)} == {8.0}, name
        else:
            assert path.read_bytes().startswith(b"%PDF")


@pytest.mark.whole
def test_the_command_writes_them_beside_the_same_page(
    micro_results: Path, micro_report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(micro_results), "--output", str(tmp_path / "mine"), "--figures"]) == 0
    assert str(tmp_path / "mine" / "index.html") in capsys.readouterr().out
    after, before = contents(tmp_path / "mine"), contents(micro_report)
    drawn = {name for name in after if name.startswith("figures/")}
    assert set(after) == set(before) | drawn and "figures/stages.pdf" in drawn
    assert all(re.search(f"figures/{path.stem}[_.]", " ".join(drawn)) for path in (micro_report / "data").glob("*.csv"))


@pytest.mark.whole
def test_its_head_says_whether_the_folders_were_audited(
    micro_run: Path, micro_report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [(micro_report / name).read_text() for name in ("index.html", "results.md", "llm_summary.json")]
    commands = [f"verified: `r2v verify-results results/{name}`" for name in ("micro", "ablations/micro")]
    assert all(command in text for command in commands for text in texts)
    shutil.copytree(micro_run / "results", tmp_path / "results")
    copied = tmp_path / "results" / "micro"
    assert cli.main(["verify-results", str(copied)]) == 0
    (digest,) = re.findall(r"content ([0-9a-f]{12})", capsys.readouterr().out)
    assert cli.main(["report", str(copied), "--output", str(tmp_path / "mine"), "--verify"]) == 0
    for name in ("index.html", "results.md", "llm_summary.json"):
        text = (tmp_path / "mine" / name).read_text()
        assert f"erified: {digest}, 20" in text and "; ablations verified: " in text and "not verified" not in text
    (copied / "notes.txt").write_text("mine")
    assert cli.main(["report", str(copied), "--output", str(tmp_path / "mine"), "--verify"]) == 3


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


@pytest.mark.parametrize(
    "mine",
    [
        "paper/data/measured.csv",
        "paper/index.html",
        "a link to a report",
        "in a report/data/measured.csv",
        ".paper.draft/index.html",
        ".paper.before/index.html",
    ],
)
def test_a_folder_or_a_file_that_no_report_wrote_is_refused_and_stays(
    mine: str, micro_results: Path, micro_report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, report = tmp_path / "paper", tmp_path / "report"
    if mine == "a link to a report":
        shutil.copytree(micro_report, report)
        output.symlink_to(report)
    elif mine.startswith("in a report/"):
        shutil.copytree(micro_report, output)
        (output / "data" / "measured.csv").write_text("mine")
    else:
        (tmp_path / mine).parent.mkdir(parents=True)
        (tmp_path / mine).write_text("mine")
    before = contents(tmp_path)
    assert cli.main(["report", str(micro_results), "--output", str(output)]) == errors.InputError.exit_code
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert str(output.parent) in said and contents(tmp_path) == before


def test_a_kill_between_the_two_renames_leaves_the_earlier_report_and_the_next_one_mends_it(
    micro_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, rename = tmp_path / "mine", Path.rename
    output.mkdir()  # an empty folder takes a report
    build_report(micro_results, output)
    before = contents(output)

    def killed(self: Path, target: Path) -> Path:
        if self.name.endswith(".draft"):
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        build_report(micro_results, output, force=True)
    assert not output.exists() and contents(tmp_path / ".mine.before") == before
    build_report(micro_results, output)
    assert contents(output) == before and [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_report_that_fails_takes_no_result_away(
    micro_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = load(MICRO, ["logging.report=true"])
    assert report_of(config, ["bc"], micro_run) is None and report_of(config, ["evaluate"], tmp_path) is None
    monkeypatch.setattr(logger, "propagate", True)
    shutil.copytree(micro_run / "results" / "micro", tmp_path / "results" / "micro")
    own = tmp_path / "results" / "report" / "micro" / "notes.txt"
    own.parent.mkdir(parents=True)
    own.write_text("a person's")
    assert report_of(config, ["evaluate"], tmp_path) is None
    assert "report failed: " in caplog.text and "error=InputError" in caplog.text
    assert [*own.parent.iterdir()] == [own] and own.read_text() == "a person's"


@pytest.mark.parametrize(
    "change",
    [
        {"claims": [{"text_template": "{x:>6000000000}", "fields": {"x": ""}}]},
        {"claims": [{"text_template": "{x.__class__}", "fields": {"x": ""}}]},
        {"claims": None},
        {"setup": []},
        {"main_table": []},
    ],
    ids=str,
)
def test_values_that_evaluate_never_writes_are_one_line(
    change: dict[str, object], micro_results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A third party's folder, whose hashes hold."""
    results = shutil.copytree(micro_results, tmp_path / "theirs")
    tables = results / "structured_results"
    bundle = json.dumps({**json.loads((tables / "eval_bundle.json").read_text()), **change})
    (tables / "eval_bundle.json").write_text(bundle)
    listed = json.loads((tables / "manifest.json").read_text())
    for entry in listed["files"]:
        if entry["path"] == "eval_bundle.json":
            entry["sha256"] = hashlib.sha256(bundle.encode()).hexdigest()
    (tables / "manifest.json").write_text(json.dumps(listed))
    assert cli.main(["report", str(results), "--output", str(tmp_path / "mine")]) == errors.InputError.exit_code
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"r2v: {results}: ") and not (tmp_path / "mine").exists()


def test_a_report_within_its_results_is_refused(micro_results: Path) -> None:
    with pytest.raises(errors.InputError, match="would fail its audit"):
        build_report(micro_results, micro_results / "structured_results" / "report")
