"""Elements of pages that open offline: a tree that escapes every text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from importlib.resources import files


def tag(name: str, /, *children: ET.Element | str | None, **attributes: str) -> ET.Element:
    """Return an element; `class_` and `for_` lose their underscore. Strings are texts."""
    element = ET.Element(name, {key.rstrip("_"): value for key, value in attributes.items()})
    for child in children:
        if isinstance(child, ET.Element):
            element.append(child)
        elif child and len(element):
            element[-1].tail = (element[-1].tail or "") + child
        elif child:
            element.text = (element.text or "") + child
    return element


def section(anchor: str, title: str, *children: ET.Element | str) -> list[ET.Element]:
    """Return a section of the page under a heading, as a list of one."""
    return [tag("section", tag("h2", title), *children, id=anchor)]


def document(title: str, policy: str, *children: ET.Element) -> str:
    """Return the text of a page that opens offline; its first heading is among the children. policy: the page's
    Content-Security-Policy."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", **{"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"R2V: {title}"),
        tag("style", files("r2v.report").joinpath("assets", "report.css").read_text()),
    )
    root = tag("html", head, tag("body", tag("main", *children)), lang="en")
    return "<!doctype html>\n" + ET.tostring(root, encoding="unicode", method="html") + "\n"


def pilot_page(title: str, verdict: str, rows: Sequence[Sequence[str]], lines: Sequence[str]) -> str:
    """Return the text of a page of a recommendation, a table and notes. rows: the table's, heads first."""
    heads, *cells = rows
    head = tag("tr", *(tag("th", head) for head in heads))
    return document(
        title,
        "default-src 'none'; style-src 'unsafe-inline'",
        tag("h1", title),
        tag("p", verdict, class_="headline"),
        tag("table", head, *(tag("tr", *(tag("td", cell) for cell in row)) for row in cells)),
        *(tag("p", line) for line in lines),
    )
