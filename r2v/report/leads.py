"""Leads: r2v less each other method in words, for the report's page and the closing lines of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from r2v.evaluation.figure_text import decimals, p_text, with_interval
from r2v.evaluation.measures.table_rows import TableRow

_VERDICTS = {"higher": "ahead", "lower": "behind", "inconclusive": "not shown"}


@dataclass(frozen=True, kw_only=True)
class Lead:
    """A comparison in words; missing parts are empty."""

    ours: str
    theirs: str
    difference: str
    """The difference with its interval."""
    verdict: str
    """Verdict for r2v: ahead | behind | not shown; empty outside the families of tests."""
    p: str
    shows_from: str
    """The least true difference that the test finds with 80 % power."""


def lead_of(row: TableRow) -> Lead:
    """Return a row of comparisons.csv in words."""
    least = row["min_detectable_difference"]
    return Lead(
        ours=decimals(row["value_a"], 3),
        theirs=decimals(row["value_b"], 3),
        difference=with_interval(row["difference"], (row["ci_lower"], row["ci_upper"])),
        verdict=_VERDICTS[row["verdict"]] if row["family"] else "",
        p=p_text(row["p_holm"]),
        shows_from="" if least is None else decimals(least, 3),
    )


def leads(rows: Iterable[TableRow]) -> dict[tuple[str, str], dict[str, Lead]]:
    """Return (condition, method that r2v is compared with) -> metric -> the comparison in words, in the order of the
    rows."""
    by_pair: dict[tuple[str, str], dict[str, Lead]] = {}
    for row in rows:
        by_pair.setdefault((row["condition"], row["method_b"]), {})[row["metric"]] = lead_of(row)
    return by_pair
