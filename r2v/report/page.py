"""Page: `index.html` of a report, assembled from its tables, figures and episodes.

Its tables show every method, r2v less each other method, and each method's loss where tasks are perturbed. It loads
nothing from a network: its Content-Security-Policy allows its own script, by hash, and the episode shards of its
folder.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from r2v.config.methods import OURS
from r2v.evaluation.figure_text import claim_text, decimals, four_decimals, with_interval
from r2v.evaluation.measures.comparisons import AT_COST
from r2v.evaluation.measures.table_rows import TableRow
from r2v.plotting import INK, LINE
from r2v.report.contrast import contrast_section
from r2v.report.elements import document, section, tag
from r2v.report.series import Series, grouped
from r2v.report.sources import Sources
from r2v.report.story import Lead, Story, lead_of, leads
from r2v.report.viewer_data import SHARD, Index

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


_COLUMNS = {
    "method": "method",
    "success_rate": "success",
    "success_rate_ci": "95 % interval",
    "llm_call_rate": "LLM steps",
    "avg_cost_cached": "USD an episode, as billed",
    "avg_cost": "at list prices",
    "cost_fraction": "cost fraction",
    "apgr": "APGR",
    "safety_failure_rate": "unsafe",
    "n_env_faults": "world failed",
}
_PREFERENCE = "Preference training, by the folder's own word"
_COLOURS = {"ahead": "supported", "behind": "not_supported"}
"""Verdict of a comparison -> the class that has its colour."""


def comparisons(sources: Sources) -> list[ET.Element]:
    """Return r2v less each other method, success and APGR side by side; empty where r2v did not play."""
    rows = sources.bundle["comparisons"]
    if not rows:
        return []
    names = ["success", *(["APGR"] if any(row["metric"] == "apgr" for row in rows) else [])]
    heads = [head for name in names for head in (name, "Holm's p", "shows from")]
    lines = [tag("tr", *(tag("th", head) for head in ("condition", f"{OURS} less", *heads)))]
    for (condition, other), by_metric in leads(rows).items():
        shown = [by_metric.get(AT_COST) or by_metric.get("success_rate"), by_metric.get("apgr")]
        cells = [cell for lead in shown[: len(names)] for cell in _compared(lead)]
        lines.append(tag("tr", tag("td", condition), tag("td", other, class_="text"), *cells))
    return section(
        "comparisons",
        f"{OURS} less each other method",
        _wide("comparisons", tag("table", *lines)),
        tag(
            "p",
            "Paired by task, with 95 % intervals. Another router's success is for the dollars that r2v spends: read "
            "off the line between its two operating points beside r2v's cost. A difference is coloured where its "
            "interval leaves 0 out and Holm's p, over the methods named in advance and all conditions, is at most .05; "
            "without p nothing was tested. It shows from the size on that the test finds with 80 % power.",
        ),
    )


def _compared(lead: Lead | None) -> list[ET.Element]:
    """Return the cells of a comparison: difference with its interval, corrected p, least detectable difference."""
    if lead is None:
        return [tag("td"), tag("td"), tag("td")]
    colour = _COLOURS.get(lead.verdict, "inconclusive")
    return [tag("td", lead.difference, class_=f"verdict {colour}"), tag("td", lead.p), tag("td", lead.shows_from)]


def main_tables(sources: Sources) -> list[ET.Element]:
    """Return the main table, condition by condition, and each method's loss to perturbations."""
    children: list[ET.Element | str] = []
    rows = sources.tables["main_table.csv"]
    for condition in sources.bundle["setup"]["conditions"]:
        own = [row for row in rows if row["condition"] == condition]
        columns = [name for name in _COLUMNS if any(row.get(name) for row in own)]
        head = tag("tr", *(tag("th", _COLUMNS[name]) for name in columns))
        lines = [
            tag("tr", *(tag("td", four_decimals(row[name])) for name in columns), **_ours(row["method"])) for row in own
        ]
        children += [tag("h3", condition), _wide(f"every method, {condition}", tag("table", head, *lines))]
    return section("tables", "Every method", *children, *robustness(sources.bundle["main_table"]))


def robustness(rows: Iterable[TableRow]) -> list[ET.Element]:
    """Return success on clean tasks less success on perturbed ones, by method; empty where one of them was not
    played."""
    gaps = {(row["method"], row["condition"]): row for row in rows if row["robustness_gap"] is not None}
    conditions, methods = (list(dict.fromkeys(key[index] for key in gaps)) for index in (1, 0))
    if not gaps:
        return []
    head = tag("tr", tag("th", "method"), *(tag("th", f"clean less {condition}") for condition in conditions))
    lines = []
    for method in methods:
        cells = [
            tag("td", with_interval(row["robustness_gap"], row["robustness_gap_ci"]) if row else "")
            for row in (gaps.get((method, condition)) for condition in conditions)
        ]
        lines.append(tag("tr", tag("td", method), *cells, **_ours(method)))
    return [
        tag("h3", "What perturbations take"),
        _wide("loss to perturbations", tag("table", head, *lines, id="robustness")),
        tag("p", "Success on clean tasks less success on the same tasks perturbed: the less, the more robust."),
    ]


def _ours(method: str) -> dict[str, str]:
    return {"class_": "ours"} if method == OURS else {}


def page(sources: Sources, opening: Story, drawn: Drawn, index: Index) -> str:
    """Return the text of index.html: the story, the episodes that show it, and the proofs."""
    script = files("r2v.report").joinpath("assets", "viewer.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}' 'self' file:"
    contrast = contrast_section(index.contrast)
    index_data = {
        "rows": index.rows,
        "names": {kind: list(numbers) for kind, numbers in index.numbers.items()},
        "shard": re.sub(r"\{.*\}", "NNNN", SHARD),
    }
    return document(
        _title(sources),
        policy,
        _story(sources, opening, drawn),
        _navigation(sources, bool(contrast)),
        *contrast,
        *_verdicts(sources, opening, index),
        *comparisons(sources),
        *main_tables(sources),
        *figures(drawn),
        _viewer(index),
        *_provenance(sources, drawn),
        tag("script", _inert(index_data), type="application/json", id="index"),
        tag("script", script),
    )


def _title(sources: Sources) -> str:
    setup = sources.bundle["setup"]
    return f"{setup['benchmark']}: {', '.join(setup['conditions'])}"


def _story(sources: Sources, opening: Story, drawn: Drawn) -> ET.Element:
    """Return the first screen."""
    shown = [figure(FIRST, drawn)] if FIRST in drawn else []
    return tag(
        "section",
        tag(
            "div",
            tag("p", f"R2V on {_title(sources)}", class_="kicker"),
            tag("p", sources.audit, class_="soft", id="audit"),
            tag("h1", opening.sentence),
            tag(
                "div",
                tag("p", tag("strong", opening.number), tag("span", opening.about), class_="number"),
                tag("p", opening.reason, class_="reason"),
                class_="answer",
            ),
        ),
        *shown,
        id="story",
        **({"class_": "single"} if shown and len(drawn[FIRST][1]) == 1 else {}),
    )


def _inert(value: Any) -> str:
    """Return JSON for a script element, escaped so that no `<` in a text ends the element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _measured(sources: Sources, index: Index) -> str:
    setup = sources.bundle["setup"]
    tasks = ", ".join(f"{count} {name}" for name, count in setup["n_tasks"].items())
    models = ", ".join(f"{role}: {name}" for role, name in setup["models"].items())
    return (
        f"{len(index.rows)} episodes: tasks {tasks}; {setup['n_seeds']} seeds; "
        f"{len(setup['methods'])} methods; {models}. One training seed unless a table says otherwise."
    )


def _navigation(sources: Sources, has_contrast: bool) -> ET.Element:
    sections = {
        **({"contrast": "Side by side"} if has_contrast else {}),
        "verdicts": "Claims",
        **({"comparisons": "Comparisons"} if sources.tables.get("comparisons.csv") else {}),
        "tables": "Tables",
        "figures": "Figures",
        "episodes": "Episodes",
        "provenance": "Provenance",
    }
    return tag("nav", *(tag("a", text, href=f"#{anchor}") for anchor, text in sections.items()))


def _verdicts(sources: Sources, opening: Story, index: Index) -> list[ET.Element]:
    by_id = {row["id"]: row for row in (*sources.bundle["comparisons"], *sources.bundle["main_table"])}
    rows = [
        tag(
            "tr",
            tag("td", claim_text(claim), class_="text"),
            tag("td", verdict_of(claim, by_id), class_=f"text verdict {_colour(claim)}"),
        )
        for claim in sources.bundle["claims"]
    ]
    caveats = [
        tag("li", f"{caveat['text']} ({len(caveat['evidence_ids'])} rows)") for caveat in sources.bundle["caveats"]
    ]
    return section(
        "verdicts",
        "What these results say",
        *(tag("p", line, class_="headline") for line in opening.others),
        tag("p", _measured(sources, index)),
        _wide("claims and their verdicts", tag("table", *rows)),
        *([tag("p", f"{_PREFERENCE}: {sources.preference}.", id="preference")] if sources.preference else []),
        tag("h3", "What to keep in mind"),
        tag("ul", *caveats, *(tag("li", f"not shown: {reason}") for reason in sources.missing)),
    )


def verdict_of(claim: Mapping[str, Any], by_id: Mapping[str, TableRow]) -> str:
    """Return a claim's verdict in words: shown or not, the difference, its interval and p. by_id: rows of comparisons
    and of the main table."""
    evidence = claim["evidence_ids"][0]
    row = by_id.get(evidence)
    if row is None:  # a score: its row of the main table, with the column behind it
        scored = by_id.get(evidence.removesuffix("/brier"), {})
        ours, constant = scored.get("brier"), scored.get("brier_base_rate")
        figures_of = (
            "" if ours is None or constant is None else f": Brier {decimals(ours, 4)}, constant {decimals(constant, 4)}"
        )
        return ("no better than a constant" if claim["opposite"] else "better than a constant") + figures_of
    lead = lead_of(row)
    word = "not shown" if claim["verdict"] == "inconclusive" else "worse" if claim["opposite"] else "shown"
    p = f", p {lead.p}" if lead.p.startswith("<") else f", p = {lead.p}" if lead.p else ""
    return f"{word}{p}: {lead.difference}"


def _wide(label: str, table: ET.Element) -> ET.Element:
    """Return a table that scrolls by itself where it is wider than the screen, also from the keyboard."""
    return tag("div", table, class_="wide", tabindex="0", role="region", **{"aria-label": label})


def _colour(claim: Mapping[str, Any]) -> str:
    """Return the class of a claim's verdict."""
    return "not_supported" if claim.get("opposite") else str(claim["verdict"])


def _viewer(index: Index) -> ET.Element:
    """Return the list of episodes and the element of the chosen one, which the script fills."""
    text = files("r2v.report").joinpath("assets", "viewer.html").read_text()
    viewer = ET.fromstring(re.sub(r"\n\s*", "", text))
    if index.left_out:
        left_out = f" The steps of {index.left_out} of them are left out, which would make it too large to copy."
        viewer[1].text = f"{viewer[1].text}{left_out}"
    return viewer


def _provenance(sources: Sources, drawn: Drawn) -> list[ET.Element]:
    reproduction = sources.bundle["reproduction"]
    facts = [
        ("made by", f"git commit {reproduction['git_commit']}"),
        ("configuration", f"SHA-256 {sources.bundle['setup']['config_sha256']}"),
        ("seeds", ", ".join(map(str, reproduction["seeds"]))),
        *(("command", command) for command in reproduction["commands"]),
        *((f"figure {name}", data.source) for name, (data, _) in drawn.items()),
        *((name, f"SHA-256 {digest}") for name, digest in sources.sha256.items()),
    ]
    rows = [tag("tr", tag("td", name), tag("td", tag("code", value), class_="text")) for name, value in facts]
    return section(
        "provenance",
        "Where every number comes from",
        tag("p", f"{sources.audit}. The second command plays each episode again and builds each table."),
        _wide("provenance", tag("table", *rows)),
    )
