"""Headline: the first line that a reader gets of an evaluation, chosen by rule from the rows of its tables.

    headline(bundle)    # ["noisy: r2v solves .77 of the tasks for .29 of the LLM's bill, ...", ...]

Every condition is put to `HEADLINES` in their order, and the first that applies has the word: a small policy that
solves nothing, a router that one could do without, else the result. A further case is one more function in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from r2v.config.methods import OURS, STRONG, WEAK
from r2v.evaluation.claims import COST_TOLERANCE
from r2v.evaluation.figure_text import decimals, dollars, signed
from r2v.evaluation.measures.table_rows import TableRow


@dataclass(frozen=True, kw_only=True)
class ConditionRows:
    """Rows of one condition: of the main table by method, of r2v's comparisons by (other method, metric)."""

    main: Mapping[str, TableRow]
    compared: Mapping[tuple[str, str], TableRow]

    def value(self, method: str, column: str) -> float | None:
        """A figure of the main table; None where it is missing or the method was not played."""
        row = self.main.get(method)
        number: float | None = None if row is None else row[column]
        return number


def rows_by_condition(bundle: Mapping[str, Any]) -> dict[str, ConditionRows]:
    """The rows of a bundle, condition by condition."""
    return {
        name: ConditionRows(
            main={row["method"]: row for row in bundle["main_table"] if row["condition"] == name},
            compared={
                (row["method_b"], row["metric"]): row for row in bundle["comparisons"] if row["condition"] == name
            },
        )
        for name in bundle["setup"]["conditions"]
    }


def headline(bundle: Mapping[str, Any]) -> list[str]:
    """A line for each text that a condition has, after the names of all conditions that have it; the gravest first."""
    texts: dict[tuple[int, str], list[str]] = {}
    for name, rows in rows_by_condition(bundle).items():
        for rank, case in enumerate(HEADLINES):
            if text := case(rows):
                texts.setdefault((rank, text), []).append(name)
                break
    return [f"{', '.join(texts[key])}: {key[1]}" for key in sorted(texts, key=lambda key: key[0])]


def _unsolved(rows: ConditionRows) -> str | None:
    if rows.value(WEAK, "success_rate") != 0:
        return None
    return (
        f"the small policy solved none of {rows.main[WEAK]['n_tasks']} tasks: train it longer (training.num_epochs; "
        "see train_match in bc_report.json), or choose a stronger one where it is behind an API"
    )


def _nothing_to_gain(rows: ConditionRows) -> str | None:
    weak, strong = (rows.value(method, "success_rate") for method in (WEAK, STRONG))
    if weak is None or strong is None or weak < strong:
        return None
    return f"never asking is as good: the small policy solves {decimals(weak)} of the tasks, the LLM {decimals(strong)}"


def _never_ask(rows: ConditionRows) -> str | None:
    row = rows.compared.get((WEAK, "success_rate"))
    if row is None or row["verdict"] == "higher":
        return None
    low, high = signed(row["ci_lower"]), signed(row["ci_upper"])
    return (
        f"never asking is as good: r2v's {decimals(row['value_a'])} of the tasks is not shown to be more than the "
        f"small policy's {decimals(row['value_b'])} ({signed(row['difference'])} [{low}, {high}])"
    )


def _always_ask(rows: ConditionRows) -> str | None:
    spent, bill = (rows.value(method, "avg_cost_cached") for method in (OURS, STRONG))
    if spent is None or bill is None or spent < (1 - COST_TOLERANCE) * bill:
        return None
    return f"always asking is as good: r2v costs {dollars(spent)} an episode, the LLM alone {dollars(bill)}"


def _result(rows: ConditionRows) -> str | None:
    success, spent = (rows.value(OURS, column) for column in ("success_rate", "avg_cost_cached"))
    if success is None or spent is None:
        return None
    weak, strong = (rows.value(method, "success_rate") for method in (WEAK, STRONG))
    bill = rows.value(STRONG, "avg_cost_cached")
    text = f"r2v solves {decimals(success)}"
    if weak is not None and strong is not None:
        text += f", {decimals((success - weak) / (strong - weak))} of the way from the small policy to the LLM,"
    text += f" for {decimals(spent / bill)} of the LLM's bill" if bill else f" for {dollars(spent)} an episode"
    return text + _standing(rows)


def _standing(rows: ConditionRows) -> str:
    """r2v among the routers that it is compared with over all budgets."""
    verdicts = {method: row["verdict"] for (method, metric), row in rows.compared.items() if metric == "apgr"}
    if not verdicts:
        return ""
    behind = [method for method, verdict in verdicts.items() if verdict == "lower"]
    ahead = sum(verdict == "higher" for verdict in verdicts.values())
    text = f"; over all budgets ahead of {ahead} of {len(verdicts)} routers"
    return text + (f", behind {', '.join(behind)}" if behind else "")


HEADLINES: tuple[Callable[[ConditionRows], str | None], ...] = (
    _unsolved,
    _nothing_to_gain,
    _never_ask,
    _always_ask,
    _result,
)
"""Cases in the order of their priority; each has a text for a condition that it applies to."""
