"""The one table printer."""

from __future__ import annotations

from r2v.console import text_table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert text_table([("job", "hours"), ("evaluate", "2"), ("bc", "")], right=[1]) == (
        "job       hours\nevaluate      2\nbc"
    )


def test_cells_are_printed_as_they_are() -> None:
    wide = "x" * 300
    assert text_table([("[red]a[/red]", wide), ("b",)], gap=1) == f"[red]a[/red] {wide}\nb"
    assert text_table([]) == ""
