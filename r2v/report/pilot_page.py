"""The page of a pilot: what it recommends, the two models and the bounds of any router, and what a full run costs."""

from __future__ import annotations

from collections.abc import Sequence

from r2v.report.elements import document, tag


def pilot_page(title: str, verdict: str, rows: Sequence[Sequence[str]], lines: Sequence[str]) -> str:
    """The text of a page that opens offline. rows: of its table, the first the heads."""
    heads, *cells = rows
    return document(
        title,
        "default-src 'none'; style-src 'unsafe-inline'",
        tag("h1", title),
        tag("p", verdict, class_="headline"),
        tag(
            "table",
            tag("tr", *(tag("th", head) for head in heads)),
            *(tag("tr", *(tag("td", cell) for cell in row)) for row in cells),
        ),
        *(tag("p", line) for line in lines),
    )
