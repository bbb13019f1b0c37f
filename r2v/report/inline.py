"""Figures as part of the page: titles, captions, and panels that a phone stacks and a wide screen puts side by side."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

from r2v.plotting import INK, LINE
from r2v.report.elements import section, tag
from r2v.report.series import Series, grouped

Drawn = Mapping[str, tuple[Series, Mapping[str, str]]]
"""Figure -> its series, and the SVG of each panel by the panel's title."""
FIRST = "frontier"
"""The figure of the first screen."""
_SVG = "http://www.w3.org/2000/svg"
FIGURES = {
    FIRST: (
        "What success costs",
        "Every operating point of every method; a name points at the main one, whose bar is the 95 % interval over "
        "tasks. The dotted curve mixes the small policy alone with the LLM alone: a router above it buys more success "
        "for a dollar. Dollars are as billed, and in figures a router's name has no “_router”.",
    ),
    "success": ("Success by method", "With 95 % intervals over tasks: all seeds of a task are drawn together."),
    "categories": ("Success by the perturbation that hit", "Episodes that a perturbation of this category changed."),
    "ranking": (
        "Does a router's score find the steps that need the LLM?",
        "Steps in ten bins of as many each, from the lowest score to the highest: a useful score rises to the right. "
        "Steps of one task go together, so no interval is drawn.",
    ),
    "reliability": (
        "Does r2v's score mean what it says?",
        "On the dotted line the score is the probability that asking the LLM is right. No other router's score claims "
        "to be one.",
    ),
    "ablations": ("What each part is worth", "Paired by task, with 95 % intervals; left of the line, the part helps."),
    "losses": ("Training", "Loss by optimizer step: the stages' own word, which no audit proves."),
    "stages": (
        "Where the time went",
        "Every stage behind these results that has a record of its duration: the records' word, which no audit proves.",
    ),
}
"""Title and caption of each figure."""


def figure(name: str, drawn: Drawn) -> ET.Element:
    """Return a figure under its title, its panels side by side or below each other."""
    data, panels = drawn[name]
    title, caption = FIGURES[name]
    if name == "categories":
        fills = zip(("Filled", "open", "half filled"), grouped(data.rows, "condition"), strict=False)
        caption += f" {', '.join(f'{fill}: {condition}' for fill, condition in fills)}."
    if name == FIRST and (free := dict.fromkeys(row["method"] for row in data.rows if row["usd_per_episode"] == 0)):
        caption += f" At $0, left of the break in the scale: {', '.join(free)}."
    shown = []
    for number, (heading, svg) in enumerate(panels.items()):
        image = _themed(svg, f"{name}-{number}-")
        image.set("role", "img")
        image.set("aria-label", f"{title}{f', {heading}' if heading else ''}: the numbers are in data/{name}.csv")
        shown.append(tag("div", *([tag("h3" if name == FIRST else "h4", heading)] if heading else []), image))
    return tag(
        "figure",
        tag("h2" if name == FIRST else "h3", title),
        tag("div", *shown, class_="panels"),
        tag(
            "figcaption",
            f"{caption} ",
            tag("a", "Numbers (CSV)", href=f"data/{name}.csv", **{"aria-label": f"numbers of: {title}"}),
        ),
        id=name,
    )


def figures(drawn: Drawn) -> list[ET.Element]:
    """Return the section of all figures but the first screen's."""
    shown = [figure(name, drawn) for name in drawn if name != FIRST]
    note = tag("p", "For a paper, as PDF and SVG of a column's width: ", tag("code", "r2v report RESULTS --figures"))
    return section("figures", "Figures", note, *shown)


def _themed(svg: str, prefix: str) -> ET.Element:
    """Return an SVG as part of the page, its ink and its grid in the page's own colours, light or dark. prefix: makes
    its ids unique in the page."""
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\1{prefix}", svg)
    for colour, name in ((INK, "ink"), (LINE, "line")):
        svg = svg.replace(colour, f"var(--{name})")
    ET.register_namespace("", _SVG)
    root = ET.parse(io.StringIO(svg)).getroot()
    for parent in root.iter():
        for child in list(parent):
            if child.tag.rpartition("}")[2] == "metadata":
                parent.remove(child)
    for element in root.iter():  # HTML has no namespaces
        element.tag = element.tag.rpartition("}")[2]
        for name in [name for name in element.attrib if name.startswith("{")]:
            element.set(name.rpartition("}")[2], element.attrib.pop(name))
    return root
