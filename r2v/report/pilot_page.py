"""The page of a pilot: what it recommends, the two models and the bounds of any router, and what a full run costs."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from importlib.resources import files

from r2v.report.elements import tag


def pilot_page(title: str, verdict: str, rows: Sequence[Sequence[str]], lines: Sequence[str]) -> str:
    """The text of a page that opens offline. rows: of its table, the first the heads."""
    style = files("r2v.report").joinpath("assets", "report.css").read_text()
    heads, *cells = rows
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    body = tag(
        "body",
        tag("h1", title),
        tag("p", verdict, class_="headline"),
        tag(
            "table",
            tag("tr", *(tag("th", head) for head in heads)),
            *(tag("tr", *(tag("td", cell) for cell in row)) for row in cells),
        ),
        *(tag("p", line) for line in lines),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", **{"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"R2V: {title}"),
        tag("style", style),
    )
    root = tag("html", head, body, lang="en")
    return "<!doctype html>\n" + ET.tostring(root, encoding="unicode", method="html") + "\n"
