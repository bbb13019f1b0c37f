"""Tables of the report's page: every method, r2v less each other one, and what each loses where tasks are perturbed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence

from r2v.config.methods import OURS
from r2v.evaluation.measures.comparisons import AT_COST
from r2v.report.elements import section, tag
from r2v.report.leads import Lead, leads
from r2v.report.series import interval_of, number_of
from r2v.report.sources import Row, Sources

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
