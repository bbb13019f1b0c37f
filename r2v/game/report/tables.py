"""Tables of the summary statistics: CSV files for programs, aligned text for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from r2v.console import text_table
from r2v.evaluation.tables.files import cell
from r2v.game.statistics.summary import SummaryStats

_EVENTS = ("revealed", "obtained", "optimal", "probably_revealed")
_OVERALL = ("secrets_revealed", "both", "one_sided", "none")


def csv_tables(analysis: SummaryStats) -> dict[str, str]:
    """Every CSV file by name."""
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
    }


def _agent_row(row: SummaryStats) -> SummaryStats:
    cells: SummaryStats = {
        name: row[name] for name in ("id", "name", "model", "interactions", "incomplete") if name in row
    }
    for event in _EVENTS:
        cells |= _flat(event, row[event])
    return {**cells, "claims": row["deception"]["claims"], **_flat("bluffs", row["deception"])}


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


def _flat(name: str, share: SummaryStats) -> SummaryStats:
    return {
        name: share["count"],
        **{f"{name}_{part}": share[part] for part in ("percent", "wilson", "bootstrap") if part in share},
    }


def _csv(rows: Iterable[SummaryStats]) -> str:
    """Rows with the same keys, in the first one's order; empty for none."""
    out, written = io.StringIO(), list(rows)
    if written:
        writer = csv.DictWriter(out, list(written[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: cell(value) for name, value in row.items()} for row in written)
    return out.getvalue()


def text_report(analysis: SummaryStats) -> str:
    """The statistics that are read most, as text."""
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
    header = ("", "interactions", *_EVENTS[:3])
    rows = [
        (f"{row['name']} ({row['model']})", str(row["interactions"]), *(_short(row[event]) for event in _EVENTS[:3]))
        for row in analysis["agents"]
    ]
    return text_table([header, *rows], right=range(1, len(header)))


def _short(share: SummaryStats) -> str:
    if share["percent"] is None:
        return "-"
    low, high = share["wilson"]
    return f"{share['count']} ({share['percent']:.1f} % [{low:.0f}, {high:.0f}])"


def _scores(analysis: SummaryStats) -> list[str]:
    scores = analysis["scores"]
    names = {row["id"]: row["name"] for row in analysis["agents"]}
    lines = [f"mean score per {scores['per']}"]
    for row in scores["agents"]:
        interval = "" if row["interval"] is None else f" [{row['interval'][0]:.2f}, {row['interval'][1]:.2f}]"
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
        lines.append(
            f"opening changes the reveal rate by {100 * effect['mean']:+.1f} points "
            f"[{100 * effect['interval'][0]:.1f}, {100 * effect['interval'][1]:.1f}], p = {effect['p']:.3g}"
        )
    table = analysis["dependence"]["all"]
    if table is not None and table["p"] is not None:
        ratio = "infinite" if table["odds_ratio"] is None else f"{table['odds_ratio']:.2f}"
        lines.append(f"the two reveals of a conversation: odds ratio {ratio}, p = {table['p']:.3g}")
    for row in analysis["who_cracks"]:
        lines.append(
            f"only {row['a']} cracked {row['only_a']} times, only {row['b']} {row['only_b']} times, "
            f"p = {row['p_holm']:.3g} (Holm)"
        )
    if analysis["data"]["fixed_secrets"]:
        lines.append("all replicates used the same secrets: nothing here speaks of other secrets")
    return lines
