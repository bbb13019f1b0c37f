"""Pages hold the tables that one command makes from the committed outcomes."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import categories, guarantee, held_out_scores, result_files, tables
from benchmarks.guarantee import Held
from benchmarks.held_out_scores import HeldOut
from benchmarks.result_files import csv_text, markdown_tables, parts_table
from benchmarks.tables import PAGES, TABLES, csv_files, filled, included, lines_of, made
from r2v.errors import InputError, UsageError

REPOSITORY = Path(__file__).parents[1]
TABLE = re.compile(r"<!-- table: .*?<!-- end of table -->", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_holds_the_tables_that_the_command_makes(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    text = page.read_text()
    assert len(included(text)) == text.count("<!-- table: ") == text.count("<!-- end of table -->")
    assert filled(text) == text, "python -m benchmarks.tables --write"


def test_the_files_and_the_plot_are_those_that_the_command_makes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(REPOSITORY)
    files = csv_files()
    assert {path.name: path.read_text() for path in result_files.FOLDER.iterdir()} == files
    assert result_files.plot(path=tmp_path / "plot").read_bytes() == result_files.PLOT.with_suffix(".svg").read_bytes()
    linked = set(re.findall(r"\(results/(\w+\.csv)\)", (REPOSITORY / "docs" / "results.md").read_text()))
    assert linked == set(files)


def test_a_cell_becomes_a_column_for_each_of_its_parts() -> None:
    lines = [
        "| x | APGR | seeds | APGR | note |",
        "|---|---|---|---|---|",
        "| y | 0.5 [0.4, .6] | 3 of 5 | 1 | 1 to 2 |",
    ]
    (table,) = markdown_tables(["before", *lines, "", "after"])
    head = 'x,APGR (x),"APGR (x), low","APGR (x), high",seeds,"seeds, of",APGR (seeds),note\n'
    assert csv_text({"only": table}) == f"{head}y,0.5,0.4,.6,3,5,1,1 to 2\n"
    several = csv_text({"one": table, "two": [{"x": "z"}], "three": []})
    assert several == f"study,{head}one,y,0.5,0.4,.6,3,5,1,1 to 2\ntwo,z,,,,,,,\n"
    part = "- case support alone instead of entropy: earns its place: yes, +0.077 [0.032, 0.117] APGR, seeds: 5 of 5"
    assert parts_table(["Parts:", "", part]) == [
        {
            "part": "case support alone instead of entropy",
            "earns its place": "yes",
            "APGR": "+0.077 [0.032, 0.117]",
            "seeds ahead": "5 of 5",
        }
    ]


def test_a_figure_with_an_interval_in_the_text_stands_in_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, or the other way round: ahead by .07 [.01, .13] where the table has -.07 [-.13, -.01]."""
    monkeypatch.chdir(REPOSITORY)
    pages = [page.read_text() for page in PAGES]
    in_tables = {interval for name in TABLES for interval in intervals("\n".join(lines_of(name)))}
    in_tables |= {(-mean, -high, -low) for mean, low, high in in_tables}
    in_text = {interval for page in pages for interval in intervals(TABLE.sub("", page))}
    assert in_text and in_text <= in_tables


def intervals(text: str) -> set[tuple[float, ...]]:
    """Return each mean with its interval, three digits."""
    number = r"([+-]?\d?\.\d{3})"
    matches = re.findall(rf"{number}\s\[{number},\s{number}\]", text)
    return {tuple(float(part) for part in match) for match in matches}


def test_what_stands_between_the_markers_is_replaced_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    page = "before\n<!-- table: feature groups -->\nold\n<!-- end of table -->\nafter\n"
    text = filled(page)
    assert text.startswith("before\n<!-- table: feature groups -->\n\n| group | r2v leads by |")
    assert text.endswith("|\n\n<!-- end of table -->\nafter\n") and "old" not in text
    assert filled(text) == text and included(text) == ["feature groups"]


def test_a_table_without_outcomes_and_an_unknown_one_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made.cache_clear()
    for name in TABLES:
        with pytest.raises(InputError, match=f"table {name}: its outcomes are not in {tables.FOLDER}"):
            lines_of(name)
    with pytest.raises(UsageError, match="table hedline: no such table; .*headline"):
        lines_of("hedline")


def test_promises_scores_and_categories_are_read_back_as_they_were_kept(tmp_path: Path) -> None:
    held = Held(student=2, alpha=0.2, verdict="", tau=0.08, failed_in_calibration=0.12, calibration_tasks=100)
    held = replace(held, failed=11, tasks=100, llm_call_rate=0.25, usd_of_llm_only=0.33)
    none = Held(student=2, alpha=0.1, verdict="infeasible: too few tasks")
    (tmp_path / "promises").write_text("".join(json.dumps(asdict(promise)) + "\n" for promise in (held, none)))
    assert guarantee.table(tmp_path / "promises")[2:] == [
        "| 2 | 0.2 | 0.0800: 0.120 of 100 | 0.110 [0.063, 0.186] | 0.25 | 0.33 |",
        "| 2 | 0.1 | infeasible: too few tasks | | | |",
    ]
    scored = HeldOut(
        states=9, ece=0.02, brier=0.1, brier_constant=0.2, router=0.8, entropy=0.7, savable=4, router_savable=None,
        entropy_savable=0.6,
    )  # fmt: skip
    (tmp_path / "scores").write_text(json.dumps(asdict(scored)) + "\n")
    row = "| 0 | 9 | 0.020 | 0.100 | 0.200 | 0.800 | 0.700 | 4 |  | 0.600 |"
    assert held_out_scores.table(tmp_path / "scores")[2:] == [row]
    (tmp_path / "student-1.json").write_text('{"clean": [[1, 0]]}')
    assert categories.stored(tmp_path)[0]["clean"].tolist() == [[1.0, 0.0]]
