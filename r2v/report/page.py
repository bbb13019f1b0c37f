"""Page: `index.html` of a report, put together from what was read, drawn and counted.

Its tables are of every method, of r2v less each other one, and of each one's loss where tasks are perturbed. It reads
nothing from a network: its policy allows the one script that it holds, by hash, and the shards of episodes beside it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from r2v.config.methods import OURS
from r2v.evaluation.claims import headline
from r2v.evaluation.measures.comparisons import AT_COST
from r2v.plotting import INK, LINE
from r2v.report.elements import document, section, tag
from r2v.report.leads import Lead, leads
from r2v.report.series import Series, interval_of, number_of
from r2v.report.sources import Row, Sources
from r2v.report.viewer_data import SHARD, Index

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
_COLOURS = {"ahead": "supported", "behind": "not_supported"}
"""Verdict of a comparison -> the class that has its colour."""


def comparisons(sources: Sources) -> list[ET.Element]:
    """r2v less each other method, success and APGR side by side; nothing where r2v did not play."""
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
        tag("div", tag("table", *lines), class_="wide"),
        tag(
            "p",
            "Paired by task, with 95 % intervals. Another router's success is for the dollars that r2v spends: read "
            "off the line between its two operating points beside r2v's cost. A difference is coloured where its "
            "interval leaves 0 out and Holm's p, over the methods named in advance and all conditions, is at most .05; "
            "without p nothing was tested. It shows from the size on that the test finds with 80 % power.",
        ),
    )


def _compared(lead: Lead | None) -> list[ET.Element]:
    """Difference with its interval, corrected p, and the difference that could be seen."""
    if lead is None:
        return [tag("td"), tag("td"), tag("td")]
    colour = _COLOURS.get(lead.verdict, "inconclusive")
    return [tag("td", lead.difference, class_=f"verdict {colour}"), tag("td", lead.p), tag("td", lead.shows_from)]


def _signed(value: str, interval: str) -> str:
    """A difference and its interval to three decimals."""
    numbers = [number_of(value), *interval_of(interval)]
    texts = ["" if number is None else f"{number:+.3f}" for number in numbers]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if texts[1] else texts[0]


def main_tables(sources: Sources) -> list[ET.Element]:
    """The main table, condition by condition, and what each method loses."""
    found: list[ET.Element | str] = []
    rows = sources.tables["main_table.csv"]
    for condition in sources.bundle["setup"]["conditions"]:
        own = [row for row in rows if row["condition"] == condition]
        columns = [name for name in _COLUMNS if any(row.get(name) for row in own)]
        head = tag("tr", *(tag("th", _COLUMNS[name]) for name in columns))
        found += [tag("h3", condition), tag("div", tag("table", head, *_lines(own, columns)), class_="wide")]
    return section("tables", "Every method", *found, *robustness(rows))


def robustness(rows: Iterable[Row]) -> list[ET.Element]:
    """Success on clean tasks less success on perturbed ones, by method; nothing where one of them was not played."""
    gaps = {(row["method"], row["condition"]): row for row in rows if row.get("robustness_gap")}
    conditions, methods = (list(dict.fromkeys(key[place] for key in gaps)) for place in (1, 0))
    if not gaps:
        return []
    head = tag("tr", tag("th", "method"), *(tag("th", f"clean less {condition}") for condition in conditions))
    lines = []
    for method in methods:
        cells = [
            tag("td", _signed(row["robustness_gap"], row["robustness_gap_ci"]) if row else "")
            for row in (gaps.get((method, condition)) for condition in conditions)
        ]
        lines.append(tag("tr", tag("td", method), *cells, **_ours(method)))
    return [
        tag("h3", "What perturbations take"),
        tag("div", tag("table", head, *lines, id="robustness"), class_="wide"),
        tag("p", "Success on clean tasks less success on the same tasks perturbed: the less, the more robust."),
    ]


def _ours(method: str) -> dict[str, str]:
    return {"class_": "ours"} if method == OURS else {}


def _lines(rows: Iterable[Row], columns: Sequence[str]) -> list[ET.Element]:
    return [tag("tr", *(tag("td", _short(row[name])) for name in columns), **_ours(row["method"])) for row in rows]


def _short(text: str) -> str:
    """A CSV cell with its numbers cut to four decimals."""
    return re.sub(r"-?\d+\.\d{5,}", lambda match: f"{float(match[0]):.4f}", text)


_SVG = "http://www.w3.org/2000/svg"
FIGURES = {
    "frontier": (
        "What success costs",
        "Every operating point of every method. The dotted line joins the small policy alone to the LLM alone: a "
        "router above it buys more success for a dollar than mixing the two blindly would.",
    ),
    "success": ("Success by method", "With 95 % intervals over tasks: all seeds of a task are drawn together."),
    "categories": ("Success by the perturbation that hit", "Episodes that a perturbation of this category changed."),
    "reliability": (
        "Does a router's score mean what it says?",
        "Steps in ten bins of as many each; on the dotted line a score is the probability that asking the LLM is "
        "right. Steps of one task go together, so no interval is drawn.",
    ),
    "ablations": ("What each part is worth", "Paired by task, with 95 % intervals; left of the line, the part helps."),
    "losses": ("Training", "Loss by optimizer step."),
    "stages": ("Where the time went", "Every stage behind these results that has a record of its duration."),
}
"""Title and caption of each figure."""


def page(sources: Sources, drawn: Mapping[str, tuple[Series, str]], index: Index) -> str:
    """The text of index.html. `drawn` has for each figure its series and its SVG."""
    script = files("r2v.report").joinpath("assets", "viewer.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}' 'self' file:"
    setup = sources.bundle["setup"]
    return document(
        f"{setup['benchmark']}: {', '.join(setup['conditions'])}",
        policy,
        *(tag("p", line, class_="headline") for line in headline(sources.bundle)),
        tag("p", _measured(sources, index)),
        _navigation(sources),
        *_verdicts(sources),
        *comparisons(sources),
        *main_tables(sources),
        *_figures(drawn),
        *_viewer(index),
        *_provenance(sources, drawn),
        tag("script", _inert(_index_data(index)), type="application/json", id="index"),
        tag("script", script),
    )


def _index_data(index: Index) -> dict[str, Any]:
    return {**asdict(index), "shard": re.sub(r"\{.*\}", "NNNN", SHARD)}


def _inert(value: Any) -> str:
    """JSON inside a page: no `<` of anybody's can end the element that holds it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _measured(sources: Sources, index: Index) -> str:
    setup = sources.bundle["setup"]
    tasks = ", ".join(f"{count} {name}" for name, count in setup["n_tasks"].items())
    models = ", ".join(f"{role}: {name}" for role, name in setup["models"].items())
    return (
        f"{len(index.rows)} executed episodes: tasks {tasks}; {setup['n_seeds']} seeds; "
        f"{len(setup['methods'])} methods; {models}. One training seed unless a table says otherwise."
    )


def _navigation(sources: Sources) -> ET.Element:
    places = {
        "verdicts": "Claims",
        **({"comparisons": "Comparisons"} if sources.tables.get("comparisons.csv") else {}),
        "tables": "Tables",
        "figures": "Figures",
        "episodes": "Episodes",
        "provenance": "Provenance",
    }
    return tag("nav", *(tag("a", text, href=f"#{place}") for place, text in places.items()))


def _verdicts(sources: Sources) -> list[ET.Element]:
    rows = [
        tag(
            "tr",
            tag("td", claim["text_template"].format(**claim["fields"]), class_="text"),
            tag("td", claim["verdict"].replace("_", " "), class_=f"verdict {_colour(claim)}"),
        )
        for claim in sources.bundle["claims"]
    ]
    caveats = [
        tag("li", f"{caveat['text']} ({len(caveat['evidence_ids'])} rows)") for caveat in sources.bundle["caveats"]
    ]
    return section(
        "verdicts",
        "What these results say",
        tag("div", tag("table", *rows), class_="wide"),
        *([tag("p", f"Preference training: {sources.preference}.", id="preference")] if sources.preference else []),
        tag("h3", "What to keep in mind"),
        tag("ul", *caveats, *(tag("li", f"not shown: {one}") for one in sources.missing)),
    )


def _colour(claim: Mapping[str, Any]) -> str:
    """The class of a claim's verdict."""
    return "not_supported" if claim.get("opposite") else str(claim["verdict"])


def _figures(drawn: Mapping[str, tuple[Series, str]]) -> list[ET.Element]:
    figures = []
    for name, (_, svg) in drawn.items():
        title, caption = FIGURES[name]
        links = [
            tag("a", "numbers (CSV)", href=f"data/{name}.csv"),
            tag("a", "PDF", href=f"figures/{name}.pdf"),
        ]
        figures.append(
            tag(
                "figure",
                tag("h3", title),
                _themed(svg),
                tag("figcaption", f"{caption} ", links[0], ", ", links[1]),
                id=name,
            )
        )
    return section("figures", "Figures", *figures)


def _themed(svg: str) -> ET.Element:
    """An SVG as part of the page, its ink and its grid in the page's own colours, light or dark."""
    for colour, name in ((INK, "ink"), (LINE, "line")):
        svg = svg.replace(colour, f"var(--{name})")
    ET.register_namespace("", _SVG)
    root = ET.parse(io.StringIO(svg)).getroot()
    for parent in root.iter():
        for child in list(parent):
            if child.tag.rpartition("}")[2] == "metadata":
                parent.remove(child)
    for element in root.iter():  # a page of HTML knows no namespaces
        element.tag = element.tag.rpartition("}")[2]
        for name in [name for name in element.attrib if name.startswith("{")]:
            element.set(name.rpartition("}")[2], element.attrib.pop(name))
    for patch in root.iterfind(".//g[@id='patch_1']"):
        patch.clear()  # the figure's white ground
    return root


def _viewer(index: Index) -> list[ET.Element]:
    def choice(label: str, name: str) -> ET.Element:
        return tag("label", label, tag("select", id=name))

    heads = ("task", "condition", "method", "seed", "outcome", "steps", "LLM steps", "USD")
    left_out = f" The steps of {index.left_out} of them are left out, which would make it too large to copy."
    return section(
        "episodes",
        "Every episode of the main table",
        tag(
            "p",
            "Choose one to see what it was shown and what it did; another method on the same task beside it; j and k "
            "go from step to step." + (left_out if index.left_out else ""),
        ),
        tag(
            "div",
            choice("condition", "condition"),
            choice("method", "method"),
            choice("outcome", "outcome"),
            choice("and", "asked"),
            tag("label", "task", tag("input", id="task", placeholder="part of its id")),
            tag("span", id="count", class_="soft"),
            id="filters",
        ),
        tag(
            "div",
            tag("table", tag("thead", tag("tr", *(tag("th", head) for head in heads))), tag("tbody", id="rows")),
            tag("button", "more", id="more"),
            id="found",
        ),
        tag(
            "p",
            tag("label", "beside it ", tag("select", id="beside")),
            " ",
            tag("button", "previous step", id="back"),
            " ",
            tag("button", "next step", id="next"),
            " ",
            tag("span", "all steps", id="where"),
        ),
        tag("div", id="episode"),
    )


def _provenance(sources: Sources, drawn: Mapping[str, tuple[Series, str]]) -> list[ET.Element]:
    made = sources.bundle["reproduction"]
    facts = [
        ("made by", f"git commit {made['git_commit']}"),
        ("configuration", f"SHA-256 {sources.bundle['setup']['config_sha256']}"),
        ("seeds", ", ".join(map(str, made["seeds"]))),
        *(("command", command) for command in made["commands"]),
        *((f"figure {name}", one.source) for name, (one, _) in drawn.items()),
        *((name, f"SHA-256 {digest}") for name, digest in sources.sha256.items()),
    ]
    rows = [tag("tr", tag("td", name), tag("td", tag("code", value), class_="text")) for name, value in facts]
    return section(
        "provenance",
        "Where every number comes from",
        tag("p", "Every success was executed, and replays: the second command plays each episode again."),
        tag("div", tag("table", *rows), class_="wide"),
    )
