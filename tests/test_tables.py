"""Pages hold the tables that one command makes from the committed outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.tables import PAGES, TABLES, filled, included, lines_of
from r2v.errors import InputError, UsageError

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_holds_the_tables_that_the_command_makes(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    text = page.read_text()
    assert len(included(text)) == text.count("<!-- table: ") == text.count("<!-- end of table -->")
    assert filled(text) == text, "python -m benchmarks.tables --write"


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
    lines_of.cache_clear()
    for name in TABLES:
        with pytest.raises(InputError, match=f"table {name}: its outcomes are not in {tables.FOLDER}"):
            lines_of(name)
    with pytest.raises(UsageError, match="table hedline: no such table; .*headline"):
        lines_of("hedline")
