"""Story of the results in words: the sentence, number and reason of the page's first screen, and r2v's leads.

The sentence is the first line of `r2v.evaluation.claims.headline`, which the closing lines of a run show too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from r2v.config.methods import OURS, ROUTERS, STRONG, WEAK
from r2v.evaluation.claims import ConditionRows, headline, rows_by_condition
from r2v.evaluation.figure_text import decimals, dollars, p_text, signed, with_interval
from r2v.evaluation.measures.table_rows import TableRow


@dataclass(frozen=True, kw_only=True)
class Story:
    """The headline of a run, in words."""

    condition: str
    """The condition that the sentence is about."""
    sentence: str
    number: str
    """The number with its unit."""
    about: str
    """The quantity that the number measures."""
    reason: str
    others: tuple[str, ...] = ()
    """The same sentence for the other conditions."""


def story(bundle: Mapping[str, Any]) -> Story:
    """Return the headline of a bundle's figures."""
    lines = headline(bundle)
    by_condition = rows_by_condition(bundle)
    named = lines[0].partition(": ")[0].split(", ")[0] if lines else ""
    condition = named if named in by_condition else next(iter(by_condition))
    rows = by_condition[condition]
    number, about = _number(rows)
    sentence = lines[0] if lines else f"{condition}: {_best(rows)}"
    return Story(
        condition=condition,
        sentence=sentence,
        number=number,
        about=about,
        reason=f"Why: {_reason(rows)}",
        others=tuple(lines[1:]),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\u00a0%"


def _between(interval: object) -> str:
    """Return an interval in words; empty without one."""
    if not isinstance(interval, list | tuple) or None in interval:
        return ""
    return f", 95 % interval {_percent(interval[0])} to {_percent(interval[1])}"


def _best(rows: ConditionRows) -> str:
    name, row = _most_successful(rows)
    cost = row["avg_cost_cached"]
    text = f"{name} solves {decimals(row['success_rate'])} of {row['n_tasks']} tasks"
    return text + (f" for {dollars(cost)} an episode" if cost is not None else "")


def _most_successful(rows: ConditionRows) -> tuple[str, Mapping[str, Any]]:
    return max(rows.main.items(), key=lambda item: item[1]["success_rate"] or 0)


def _number(rows: ConditionRows) -> tuple[str, str]:
    """Return the number, and the quantity that it measures."""
    weak, strong, ours = (rows.value(method, "success_rate") for method in (WEAK, STRONG, OURS))
    if weak == 0:
        return f"0 of {rows.main[WEAK]['n_tasks']}", "tasks solved by the small policy alone"
    if ours is None:
        name, row = _most_successful(rows)
        return _percent(row["success_rate"] or 0), f"of the tasks solved by {name}{_between(row['success_rate_ci'])}"
    solved = f"of the tasks solved by r2v{_between(rows.main[OURS]['success_rate_ci'])}"
    if weak is None or strong is None or strong <= weak:
        return _percent(ours), solved
    lead = rows.compared.get((WEAK, "success_rate"))
    if lead is not None and lead["verdict"] != "higher":
        low, high = signed(lead["ci_lower"]), signed(lead["ci_upper"])
        added = f"success that r2v adds to the small policy alone, 95 % interval {low} to {high}"
        return signed(lead["difference"]), added
    spent, bill = (rows.value(method, "avg_cost_cached") for method in (OURS, STRONG))
    paid = f", for {_percent(spent / bill)} of its bill" if spent is not None and bill else ""
    return _percent((ours - weak) / (strong - weak)), f"of the LLM's lead over the small policy kept by r2v{paid}"


def _reason(rows: ConditionRows) -> str:
    llm_share = rows.value(OURS, "llm_call_rate")
    if llm_share is None:
        return f"there is nothing to compare: {OURS} was not played; add it to evaluation.methods"
    rate = f"r2v asks the LLM in {_percent(llm_share)} of its steps"
    if rows.value(WEAK, "success_rate") == 0:
        return (
            "a router saves money on the tasks that the small policy solves alone, and it solves none; "
            f"{rate} and solves {_percent(rows.value(OURS, 'success_rate') or 0)}"
        )
    ours, others = rows.value(OURS, "router_auroc"), {}
    for method in ROUTERS:
        if method != OURS and (auroc := rows.value(method, "router_auroc")) is not None:
            others[method] = auroc
    if ours is not None:
        best = max(others, key=lambda name: others[name], default=None)
        beside = f"; of {best}'s score, {decimals(others[best])}" if best else ""
        return (
            f"{rate}, and its score tells these steps from others: it is higher at a step where the LLM makes the "
            f"difference than at another with probability {decimals(ours)} (a coin: .50{beside})"
        )
    coin = rows.value("random_router", "success_rate")
    return rate + (f"; a router that asks by a coin solves {_percent(coin)}" if coin is not None else "")


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
