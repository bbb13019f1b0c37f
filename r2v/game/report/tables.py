"""The figures as tables: CSV files for programs, aligned text for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from r2v.evaluation.tables.files import cell

Row = dict[str, Any]

_EVENTS = ("revealed", "obtained", "optimal", "probably_revealed")
_OVERALL = ("secrets_revealed", "both", "one_sided", "none")


def tables(analysis: Row) -> dict[str, str]:
    """Every CSV file by name."""
    return {
        "agents.csv": _csv(map(_player, analysis["agents"])),
        "models.csv": _csv(map(_player, analysis["models"])),
        "overall.csv": _csv(_overall(analysis["overall"])),
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


def _player(row: Row) -> Row:
    known: Row = {name: row[name] for name in ("id", "name", "model", "interactions", "incomplete") if name in row}
    for event in _EVENTS:
        known |= _flat(event, row[event])
    return {**known, "claims": row["deception"]["claims"], **_flat("bluffs", row["deception"])}


def _overall(row: Row) -> list[Row]:
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


def _flat(name: str, share: Row) -> Row:
    return {
        name: share["count"],
        **{f"{name}_{part}": share[part] for part in ("percent", "wilson", "bootstrap") if part in share},
    }


def _csv(rows: Iterable[Row]) -> str:
    """Rows with the same keys, in the first one's order; empty for none."""
    out, written = io.StringIO(), list(rows)
    if written:
        writer = csv.DictWriter(out, list(written[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: cell(value) for name, value in row.items()} for row in written)
    return out.getvalue()


def report(analysis: Row) -> str:
    """The figures that are read most, as text."""
    overall, data = analysis["overall"], analysis["data"]
    parts = [
        f"{overall['interactions']} interactions in {analysis['game_mode']} mode, {overall['incomplete']} incomplete "
        "(counted, in no figure)",
        *(f"  {count} x {reason}" for reason, count in data["incomplete_reasons"].items()),
        "",
        aligned(
            ["", "interactions", "revealed", "obtained", "optimal"],
            [
                [
                    f"{row['name']} ({row['model']})",
                    str(row["interactions"]),
                    *(_short(row[event]) for event in _EVENTS[:3]),
                ]
                for row in analysis["agents"]
            ],
        ),
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


def _short(share: Row) -> str:
    if share["percent"] is None:
        return "-"
    low, high = share["wilson"]
    return f"{share['count']} ({share['percent']:.1f} % [{low:.0f}, {high:.0f}])"


def _scores(analysis: Row) -> list[str]:
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


def _effects(analysis: Row) -> list[str]:
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


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with its first column left-aligned and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            value.ljust(width) if at == 0 else value.rjust(width)
            for at, (value, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    )
