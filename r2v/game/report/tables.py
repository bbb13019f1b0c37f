"""Tables of the summary statistics: CSV files for programs, aligned text for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from r2v.console import text_table
from r2v.evaluation.tables.files import cell
from r2v.game.statistics.summary import MIN_FOR_INTERVAL, SummaryStats

_EVENTS = ("revealed", "obtained", "optimal", "probably_revealed")
_OVERALL = ("secrets_revealed", "both", "one_sided", "none")


def csv_tables(analysis: SummaryStats) -> dict[str, str]:
    """Return the content of every CSV file by name."""
    return {
        "agents.csv": _csv(map(_agent_row, analysis["agents"])),
        "models.csv": _csv(map(_agent_row, analysis["models"])),
        "overall.csv": _csv(_overall_rows(analysis["overall"])),
        "scores.csv": _csv({"of": of, **row} for of in ("agents", "models") for row in analysis["scores"][of]),
        "first_mover.csv": _csv(
            {
                "first": row["first"],
                "second": row["second"],
                "interactions": row["interactions"],
                **_flat("first_revealed", row["first_revealed"]),
                **_flat("second_revealed", row["second_revealed"]),
            }
            for row in analysis["first_mover"]["matrix"]
        ),
        "who_cracks.csv": _csv(analysis["who_cracks"]),
        "time_to_reveal.csv": _csv(
            {"model": row["name"], **point} for row in analysis["time_to_reveal"]["models"] for point in row["curve"]
        ),
        "leaked_bits.csv": _csv(
            {"model": row["name"], "message": point["message"], "bits": point["mean"], "bootstrap": point["interval"]}
            for row in analysis["models"]
            for point in row["leak"]["by_message"]
        ),
        "factors.csv": _csv(_factor_rows(analysis["factors"])),
    }


def _agent_row(row: SummaryStats) -> SummaryStats:
    cells: SummaryStats = {
        name: row[name] for name in ("id", "name", "model", "interactions", "incomplete") if name in row
    }
    for event in _EVENTS:
        cells |= _flat(event, row[event])
    claims, leak = row["deception"], row["leak"]
    return {
        **cells,
        "claims": claims["claims"],
        "half_truths": claims["half_truths"],
        **_flat("bluffs", claims),
        "leaked_bits": leak["mean"],
        "leaked_bits_bootstrap": leak["interval"],
        "entropy_bits": leak["entropy"],
        **_flat("leaked_in_part", leak["partial"]),
    }


def _overall_rows(row: SummaryStats) -> list[SummaryStats]:
    return [
        {
            "figure": name,
            "interactions": row["interactions"],
            "incomplete": row["incomplete"],
            "count": row[name]["count"],
            "percent": row[name]["percent"],
            "wilson": row[name]["wilson"],
            "bootstrap": row[name]["bootstrap"],
        }
        for name in _OVERALL
    ]


def _factor_rows(factors: Iterable[SummaryStats]) -> list[SummaryStats]:
    """Return a row per contrast and per interaction; rates and bits are differences."""
    rows = []
    for factor in factors:
        for effect in (*factor["contrasts"], *factor["interactions"]):
            row = {
                "factor": factor["name"],
                "level": effect["level"],
                "baseline": effect.get("baseline", factor["levels"][0]["level"]),
                "with_factor": effect.get("factor", ""),
                "with_level": effect.get("other", ""),
            }
            for measure in ("revealed", "bits"):
                values = effect[measure] or dict.fromkeys(("mean", "interval", "p", "p_holm", "pairs"))
                row |= {f"{measure}_{part}": values[part] for part in ("mean", "interval", "p", "p_holm")}
                row["replicates"] = values["pairs"]
            rows.append(row)
    return rows


def _flat(name: str, share: SummaryStats) -> SummaryStats:
    return {
        name: share["count"],
        **{f"{name}_{part}": share[part] for part in ("percent", "wilson", "bootstrap") if part in share},
    }


def _csv(rows: Iterable[SummaryStats]) -> str:
    """Return rows with equal keys as CSV, columns in the first row's order; empty without rows."""
    out, written = io.StringIO(), list(rows)
    if written:
        writer = csv.DictWriter(out, list(written[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: cell(value) for name, value in row.items()} for row in written)
    return out.getvalue()


def text_report(analysis: SummaryStats) -> str:
    """Return the main statistics as text."""
    overall, data = analysis["overall"], analysis["data"]
    parts = [
        f"{overall['interactions']} interactions in {analysis['game_mode']} mode, {overall['incomplete']} incomplete "
        "(counted, in no figure)",
        *(f"  {count} x {reason}" for reason, count in data["incomplete_reasons"].items()),
        "",
        _agents_table(analysis),
        "",
        f"secrets revealed   {_short(overall['secrets_revealed'])} of {2 * overall['interactions']}",
        *(
            f"{title:<18} {_short(overall[name])}"
            for title, name in (("both revealed", "both"), ("one-sided", "one_sided"), ("none", "none"))
        ),
        "",
        *_scores(analysis),
        "",
        *_effects(analysis),
        f"tokens {data['tokens_in']} in, {data['tokens_out']} out, ${data['cost_usd']:.4f} at list price",
    ]
    return "\n".join(parts) + "\n"


def _agents_table(analysis: SummaryStats) -> str:
    header = ("", "interactions", *_EVENTS[:3], "bits leaked")
    rows = [
        (
            f"{row['name']} ({row['model']})",
            str(row["interactions"]),
            *(_short(row[event]) for event in _EVENTS[:3]),
            _bits(row["leak"]),
        )
        for row in analysis["agents"]
    ]
    return text_table([header, *rows], right=range(1, len(header)))


def _short(share: SummaryStats) -> str:
    if share["percent"] is None:
        return "-"
    if share["wilson"] is None:
        return f"{share['count']} ({share['percent']:.1f} %, too few for an interval)"
    low, high = share["wilson"]
    return f"{share['count']} ({share['percent']:.1f} % [{low:.0f}, {high:.0f}])"


def _bits(leak: SummaryStats) -> str:
    if leak["mean"] is None:
        return "-"
    interval = "" if leak["interval"] is None else " [{:.1f}, {:.1f}]".format(*leak["interval"])
    return f"{leak['mean']:.1f} of {leak['entropy']:.1f}{interval}"


def _change(effect: SummaryStats, blocks: str) -> str:
    """Return a change of the reveal rate in words; `blocks` are the units of its interval."""
    interval = (
        f"(no interval: {effect['pairs']} of at least {MIN_FOR_INTERVAL} {blocks})"
        if effect["interval"] is None
        else "[{:.1f}, {:.1f}]".format(*(100 * bound for bound in effect["interval"]))
    )
    return f"changes the reveal rate by {100 * effect['mean']:+.1f} points {interval}"


def _contrast(factor: str, contrast: SummaryStats) -> str:
    effect = contrast["revealed"]
    change = f"{contrast['level']} against {contrast['baseline']} {_change(effect, 'replicates')}"
    return f"{factor}: {change}, p = {effect['p_holm']:.3g} (Holm)"


def _scores(analysis: SummaryStats) -> list[str]:
    scores = analysis["scores"]
    names = {row["id"]: row["name"] for row in analysis["agents"]}
    lines = [f"mean score per {scores['per']}"]
    for row in scores["agents"]:
        few = f"  (no interval: {row['clusters']} of at least {MIN_FOR_INTERVAL} {scores['clusters']})"
        interval = few if row["interval"] is None else f" [{row['interval'][0]:.2f}, {row['interval'][1]:.2f}]"
        lines.append(f"  {names[row['name']]:<16} {row['mean']:.3f}{interval}")
    if scores["sessions_left_out"]:
        lines.append(
            f"  {scores['sessions_left_out']} sessions were cut short or hold an incomplete conversation: not scored"
        )
    return lines


def _effects(analysis: SummaryStats) -> list[str]:
    lines = []
    effect = analysis["first_mover"]["difference"]
    if effect is not None:
        lines.append(f"opening {_change(effect, 'pairs of secrets')}, p = {effect['p']:.3g}")
    table = analysis["dependence"]["all"]
    if table is not None and table["p"] is not None:
        ratio = "infinite" if table["odds_ratio"] is None else f"{table['odds_ratio']:.2f}"
        lines.append(f"the two reveals of a conversation: odds ratio {ratio}, p = {table['p']:.3g}")
    for row in analysis["who_cracks"]:
        lines.append(
            f"only {row['a']} cracked {row['only_a']} times, only {row['b']} {row['only_b']} times, "
            f"p = {row['p_holm']:.3g} (Holm)"
        )
    for factor in analysis["factors"]:
        lines += [_contrast(factor["name"], contrast) for contrast in factor["contrasts"] if contrast["revealed"]]
    if analysis["data"]["fixed_secrets"]:
        lines.append("all replicates used the same secrets: nothing here speaks of other secrets")
    return lines
