"""Claims: what the figures allow one to say, by rule.

A claim is a template with its fields filled, the ids of the figures it rests on, and a verdict: supported or
inconclusive. Each kind has two templates: the sentence that R2V was built to make, and its opposite. Where the figures
show the opposite, that is the claim, `opposite` is true and the verdict supported. Templates hold no numbers: those are
in the rows that the ids name. Caveats are made the same way and say where the figures are weak.

    headline(bundle)    # ["noisy: r2v solves .77 of the tasks for .29 of the LLM's bill, ...", ...]

For the first line, every condition is put to `HEADLINES` in their order, and the first that applies is used: a small
policy that solves nothing, a router that adds nothing, else the result. A further case is one more function in its
position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from r2v.config.methods import CLONE, FAMILY, METHODS, ORACLE, OURS, ROUTERS, STRONG, WEAK
from r2v.data.episode import MODEL_FAILURES
from r2v.evaluation.figure_text import decimals, dollars, with_interval
from r2v.evaluation.measures.comparisons import AT_COST
from r2v.evaluation.measures.table_rows import TableRow
from r2v.evaluation.setup import FRONTIER, GAINS, RouterScores

Claim = dict[str, Any]

COST_TOLERANCE = 0.02
"""Costs that are apart by this much of the way from slm_only's to llm_only's still count as the same."""
NON_INFERIOR = 0.01
"""Success given up that still counts as none: one point."""
FEW_SEEDS = 5
_OUTCOMES = ("success_rate", "avg_cost")
"""Equal to the last digit where two policies acted alike."""

_TEMPLATES = {
    "higher": (
        "{a} succeeds more often than {b} on {condition} tasks",
        "{a} succeeds less often than {b} on {condition} tasks",
    ),
    "at_cost": (
        "{a} succeeds more often than {b} for the same dollars on {condition} tasks",
        "{a} succeeds less often than {b} for the same dollars on {condition} tasks",
    ),
    "within": (
        "{a} succeeds as often as {b}, give or take one point, on {condition} tasks",
        "{a} succeeds less often than {b}, by more than one point, on {condition} tasks",
    ),
    "area": (
        "{a} recovers more of the gap to the LLM for its cost than {b} on {condition} tasks",
        "{a} recovers less of the gap to the LLM for its cost than {b} on {condition} tasks",
    ),
    "score": (
        "the score of {a} predicts which steps need the LLM better than a constant on {condition} tasks",
        "the score of {a} predicts which steps need the LLM no better than a constant on {condition} tasks",
    ),
}
_KINDS = {"success_rate": "higher", AT_COST: "at_cost", "apgr": "area"}
"""Metric of a comparison -> kind of its claim."""


def claims(main: Iterable[TableRow], comparisons: Iterable[TableRow]) -> list[Claim]:
    """Every claim that R2V was built to make, or its opposite, with its verdict here: one for each test of the
    families, and one for each score that is a probability of a gain."""
    scored = [row for row in main if row["brier"] is not None]
    return [*(_compared(row) for row in comparisons if row["family"]), *map(_scored, scored)]


def _claim(kind: str, evidence: list[str], shown: str, **fields: str) -> Claim:
    """A claim whose figures show "higher" (it holds), "lower" (its opposite does), or neither."""
    opposite = shown == "lower"
    return {
        "id": "/".join(("claim", kind, *fields.values())),
        "text_template": _TEMPLATES[kind][opposite],
        "fields": fields,
        "evidence_ids": evidence,
        "verdict": "supported" if shown in ("higher", "lower") else "inconclusive",
        "opposite": opposite,
    }


def _compared(row: TableRow) -> Claim:
    fields = {"condition": row["condition"], "a": row["method_a"], "b": row["method_b"]}
    if row["method_b"] == STRONG:
        return _claim("within", [row["id"]], _non_inferior(row), **fields)
    return _claim(_KINDS[row["metric"]], [row["id"]], row["verdict"], **fields)


def _non_inferior(row: TableRow) -> str:
    if row["ci_lower"] > -NON_INFERIOR:
        return "higher"
    return "lower" if row["ci_upper"] < -NON_INFERIOR else "inconclusive"


def _scored(row: TableRow) -> Claim:
    evidence = [f"{row['id']}/brier", f"{row['id']}/brier_base_rate"]
    better = row["brier"] < row["brier_base_rate"]
    return _claim("score", evidence, "higher" if better else "lower", condition=row["condition"], a=row["method"])


def caveats(
    main: list[TableRow],
    comparisons: list[TableRow],
    scores: Iterable[RouterScores] = (),
    limits: Mapping[str, int] | None = None,
    num_never_branched: int = 0,
) -> list[dict[str, Any]]:
    """Caveats of these figures, each with the rows that show it. `scores`: of the routers on held-out steps; `limits`:
    the setup's; `num_never_branched`: tasks that change a world which others share."""
    limited = _limited(main, limits or {}, num_never_branched)
    weaknesses = dict([*_weaknesses(main, comparisons), *_untrained(main, scores), *limited])
    return [{"text": text, "evidence_ids": ids} for text, ids in weaknesses.items() if ids]


def _weaknesses(main: list[TableRow], comparisons: list[TableRow]) -> Iterator[tuple[str, list[str]]]:
    def where(rows: list[TableRow], test: Callable[[TableRow], bool]) -> list[str]:
        return [row["id"] for row in rows if test(row)]

    yield (
        "few seeds: the worst seed and CVaR over seeds rest on n_seeds values",
        where(main, lambda row: row["n_seeds"] < FEW_SEEDS),
    )
    yield (
        "episodes that ended in a fault of the environment are counted in n_env_faults and in no mean",
        where(main, lambda row: row["n_env_faults"] > 0),
    )
    yield (
        "more than 5 % of a row's episodes were not measured: read success_rate_with_faults beside success_rate",
        where(main, lambda row: row.get("many_faults", False)),
    )
    yield (
        "episodes in which a model gave no action (refused, truncated, overflowed, silent, unparsed) count as failures",
        where(main, lambda row: any(row.get(f"n_{kind}") for kind in MODEL_FAILURES)),
    )
    yield (
        "no failure, or no success, was seen: read the interval, not the rate",
        where(main, lambda row: row["success_rate"] in (0, 1)),
    )
    yield (
        "the router's score predicts no better than a constant base rate: not useful",
        where(main, lambda row: row["brier"] is not None and row["brier"] >= row["brier_base_rate"]),
    )
    yield (
        "no difference was found; true ones below min_detectable_difference may go unseen",
        where(comparisons, lambda row: row["verdict"] == "inconclusive"),
    )
    yield (
        "outside the families named in advance: no corrected p, an observation and not a test",
        where(comparisons, lambda row: not row["family"]),
    )
    yield ("r2v and another router did not cost the same on these tasks: see their cost fractions", _apart(main))
    unsolved = {row["condition"] for row in main if row["method"] == WEAK and row["success_rate"] == 0}
    yield (
        "the small policy solved nothing: there is no gap to share, and no APGR or CPT",
        where(main, lambda row: row["method"] in ROUTERS and row["condition"] in unsolved),
    )
    yield (
        "the router asked the LLM in no step, or in every one, at its main point: without another point it has no APGR",
        where(main, lambda row: row["method"] in ROUTERS and row["llm_call_rate"] in (0, 1)),
    )
    yield ("latency is modelled from tokens, not measured", where(main, lambda row: row["avg_latency"] is not None))
    yield (
        "a method of the family was not evaluated: the correction runs over fewer comparisons",
        _family_incomplete(main),
    )


def _untrained(main: list[TableRow], scores: Iterable[RouterScores]) -> Iterator[tuple[str, list[str]]]:
    """Yield a caveat for each training without effect on the results."""
    by_id = {row["id"]: row for row in main}
    yield (
        "the trained router gives every step the same score, as it does where its labels held one class",
        [
            row_id
            for score in scores
            if METHODS[score.method].trained_router and len(set(score.p)) == 1
            if (row_id := f"main/{score.condition}/{score.method}") in by_id
        ],
    )
    pairs = [(row, by_id.get(f"main/{row['condition']}/{CLONE}")) for row in main if row["method"] == WEAK]
    alike = [(row, clone) for row, clone in pairs if clone and all(row[name] == clone[name] for name in _OUTCOMES)]
    yield (
        "preference training changed no figure, as where it is off, had no pairs or was thrown away: the clone acted",
        [row["id"] for pair in alike for row in pair],
    )


def _limited(
    main: list[TableRow], limits: Mapping[str, int], num_never_branched: int
) -> Iterator[tuple[str, list[str]]]:
    """Yield a caveat for each figure that rests on fewer tasks than the table."""
    figures: dict[str, tuple[str, Callable[[TableRow], bool]]] = {
        FRONTIER: ("APGR and CPT rest", lambda row: row["apgr"] is not None),
        GAINS: ("ECE, Brier score and AUROC rest", _judged),
    }
    for name in limits:
        what, test = figures.get(name, (f"{name} rests", lambda row, name=name: row["method"] == name))
        rows = [row["id"] for row in main if test(row)]
        yield f"{what} on fewer tasks than the other figures, on the first of theirs: see limits in the setup", rows
    if num_never_branched:
        yield (
            f"{num_never_branched} tasks change a world that others share and are never branched: {ORACLE}, ECE, Brier "
            "score and AUROC rest on the others",
            [row["id"] for row in main if row["method"] == ORACLE or _judged(row)],
        )


def _judged(row: TableRow) -> bool:
    """True if the method's score was held against executed gains."""
    return row["brier"] is not None or row["router_auroc"] is not None


def _apart(main: list[TableRow]) -> list[str]:
    """Rows of routers that cost more or less than r2v, whose cost their thresholds were placed for."""
    placed = [row for row in main if row["method"] in ROUTERS and row["cost_fraction"] is not None]
    ours = {row["condition"]: row for row in placed if row["method"] == OURS}
    return [
        row["id"]
        for row in placed
        if row["condition"] in ours
        and abs(row["cost_fraction"] - ours[row["condition"]]["cost_fraction"]) > COST_TOLERANCE
    ]


def _family_incomplete(main: list[TableRow]) -> list[str]:
    there = {row["id"] for row in main}
    return [
        row["id"]
        for row in main
        if row["method"] == OURS and any(f"main/{row['condition']}/{method}" not in there for method in FAMILY)
    ]


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
    difference = with_interval(row["difference"], (row["ci_lower"], row["ci_upper"]), 2)
    return (
        f"never asking is as good: r2v's {decimals(row['value_a'])} of the tasks is not shown to be more than the "
        f"small policy's {decimals(row['value_b'])} ({difference})"
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
