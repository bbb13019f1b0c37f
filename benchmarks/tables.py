"""Make every table of README.md and docs/ that comes from benchmarks/outcomes, by one command.

    python -m benchmarks.tables             # print them all, in Markdown
    python -m benchmarks.tables --write     # and put each into its page, the long ones into docs/results/*.csv

A page includes a table between the lines `<!-- table: NAME -->` and `<!-- end of table -->`. tests/test_tables.py fails
if a page has something else between them. Outcomes are made by `python -m benchmarks.students` and the other studies.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks import categories, guarantee, held_out_scores, mrp_runs, preference, results_table, robustness_table
from benchmarks.headline_figures import Curves
from benchmarks.placing import MAIN_POINT
from benchmarks.result_files import FOLDER as FILES
from benchmarks.result_files import Table, aligned_table, csv_text, markdown_tables, parts_table, plot
from benchmarks.rivals import is_part
from benchmarks.student_pieces import Piece, bounds, resamples
from benchmarks.students import OUTCOMES
from benchmarks.students_table import PLANNED, areas_of, groups_table, over_students, pieces_in, table
from r2v.config import CostConfig
from r2v.config.methods import OURS, STRONG, WEAK
from r2v.errors import InputError, UsageError, nearest

PAGES = (Path("README.md"), Path("docs/results.md"), Path("docs/all-baselines.md"))
STUDIES = {
    "desk, noisy": "students, noisy",
    "desk, shift": "students, shift",
    "desk, clean": "students, clean",
    "BabyAI": "babyai_seeds",
    "TextWorld": "textworld_seeds",
    "SmolLM2-135M": "smollm2",
    "cloned from clean episodes": "clean_trained",
}
"""Names of studies in docs/results/*.csv, and of their tables here."""
STUDY_FILES = ("methods", "dollars", "non_inferiority", "perturbations_hit")
"""Files of a study's tables, in the order in which they are printed; clean tasks have no last one."""
SINGLE_FILES = {
    "mrp": "make mrp",
    "robustness": "robustness",
    "perturbations_alone": "categories",
    "guarantee": "guarantee",
    "calibration": "held-out scores",
    "feature_groups": "feature groups",
    "untrusted_mark": "mark of outsiders",
}
"""Files of one table, and its name here."""
FOLDER = OUTCOMES.parent
CONDITIONS = ("noisy", "shift", "clean")
HEADLINE_ROWS = 5
"""Baselines of the headline table, the best under noise."""
HEADLINE_LEVELS = (0.7, 0.8)
SENTENCE = (
    "{seeds} training seeds, {tasks} unread desk tasks, a student of 0.2 M parameters, a scripted expert in place of "
    "the LLM, list prices. Where tools fail and pages carry injected instructions, {levels}; the LLM alone "
    "succeeds in {llm_success:.2f} for ${llm:.4f}."
)
AT_LEVEL = (
    "success {level:.2f} costs r2v ${r2v:.4f} an episode, routing by entropy ${entropy:.4f}, by disagreement "
    "${disagreement:.4f}"
)
NUMBER = (
    "On {tasks} unread tasks of the bundled benchmark, where tools fail and pages carry injected instructions, **R2V "
    "reaches success {level:.2f} for {entropy} of the dollars of routing by token entropy**. The strongest baseline "
    "(asking where the two models would act differently) pays as much as R2V there, {disagreement}; over all budgets "
    "R2V recovers {lead} more of the gap between the small policy and the LLM. {seeds} training seeds, 95 % intervals; "
    "a student of 0.2 M parameters at ${slm.input:.2f} and ${slm.output:.2f} per million tokens in and out, a scripted "
    "expert in place of the LLM at ${llm.input:.2f} and ${llm.output:.2f}."
)
INJECTIONS = (
    "Of the noisy episodes that hold an injected instruction, r2v obeys it in {r2v}, routing by disagreement in "
    "{disagreement}, by entropy in {entropy}, and the small policy alone in {slm_only}, each router at its main point."
)
_INCLUDED = re.compile(r"(?<=<!-- table: )(.+?)( -->\n)(.*?)(?=<!-- end of table -->)", re.DOTALL)


def headline() -> list[str]:
    """Return r2v beside the best baselines under all conditions, and dollars at equal success under noise."""
    pieces = {condition: _pieces(OUTCOMES, condition) for condition in CONDITIONS}
    noisy = pieces["noisy"]
    methods = [
        name for name in dict.fromkeys(method for _, method, point in noisy[0].cells if point) if not is_part(name)
    ]
    areas = {condition: areas_of(some, condition, methods) for condition, some in pieces.items()}
    curves = Curves.of(noisy, "noisy", methods)
    order = sorted(methods, key=lambda name: -over_students(areas["noisy"][0][name])[0])
    best = [name for name in order if name != OURS][:HEADLINE_ROWS]
    heads = [f"{condition}: APGR, r2v's lead" for condition in CONDITIONS]
    heads += [f"noisy: mUSD at success {level:.2f}, r2v pays of these" for level in HEADLINE_LEVELS]
    rows = [f"| method | {' | '.join(heads)} |", "|" + "---|" * (1 + len(heads))]
    for method in [name for name in order if name in (OURS, *best)]:
        cells = []
        for own, leads in areas.values():
            lead = over_students(leads[method]) if method in leads else None
            beside = "" if lead is None else f", {lead[0]:+.3f} {bounds(lead[1:])}"
            cells.append(f"{over_students(own[method])[0]:.3f}{beside}")
        for level in HEADLINE_LEVELS:
            usd, ours = curves.dollars(method, level), curves.dollars(OURS, level)
            beside = "" if method == OURS else f", {ours[0] / usd[0]:.2f} {bounds((ours / usd)[1:])}"
            cells.append(f"{1e3 * usd[0]:.2f}{beside}")
        rows.append(f"| {method} | {' | '.join(cells)} |")
    return rows


def sentence() -> list[str]:
    """Return dollars at equal success under noise, and the conditions they were measured under."""
    pieces = _pieces(OUTCOMES, "noisy")
    curves = Curves.of(pieces, "noisy", [OURS, "entropy", "disagreement"])
    levels = [
        AT_LEVEL.format(level=level, **{name: curves.dollars(name, level)[0] for name in curves.cost})
        for level in HEADLINE_LEVELS
    ]
    counts = resamples(pieces, "noisy")
    ends = [[draw[0] for draw in piece.means("noisy", STRONG, "", counts)] for piece in pieces]
    usd, success = np.mean(ends, axis=0)
    study = {"seeds": len(pieces), "tasks": counts.shape[1], "levels": "; ".join(levels)}
    return textwrap.wrap(SENTENCE.format(**study, llm=usd, llm_success=success), 120)


def number() -> list[str]:
    """Return the dollars of r2v and two baselines at the headline's higher level, with student and prices."""
    pieces = _pieces(OUTCOMES, "noisy")
    baselines, level = ["entropy", "disagreement"], HEADLINE_LEVELS[-1]
    curves = Curves.of(pieces, "noisy", [OURS, *baselines])
    ours, shares = curves.dollars(OURS, level), {}
    for name in baselines:
        theirs = curves.dollars(name, level)
        shares[name] = f"{ours[0] / theirs[0]:.2f} {bounds((ours / theirs)[1:])}"
    lead = over_students(areas_of(pieces, "noisy", [OURS, *baselines])[1]["disagreement"])
    study = {"seeds": len(pieces), "tasks": resamples(pieces, "noisy").shape[1], "level": level}
    prices = {"slm": CostConfig().slm, "llm": CostConfig().llm}
    text = NUMBER.format(**study, **prices, **shares, lead=f"{lead[0]:.3f} {bounds(lead[1:])}")
    return textwrap.wrap(text, 120)


def injections() -> list[str]:
    """Return the rate at which injected instructions are obeyed under noise."""
    rows = [line.split(" | ") for line in made("students, noisy") if line.startswith("| ")]
    start = next(at for at, row in enumerate(rows) if len(row) > 1 and row[1] == "injected instruction obeyed")
    shares = {row[0].removeprefix("| "): row[1].partition(" ")[0] for row in rows[start + 1 :]}
    text = INJECTIONS.format(**{name: shares[name] for name in (OURS, "disagreement", "entropy", WEAK)})
    return textwrap.wrap(text, 120)


def listed(heading: str) -> list[str]:
    """Return the lines below a heading of the main study's tables, condition by condition."""
    lines = []
    for condition in CONDITIONS:
        table_lines = made(f"students, {condition}")
        start = table_lines.index(heading) + 2
        lines += [f"{condition}:", "", *table_lines[start : table_lines.index("", start)], ""]
    return lines[:-1]


def studies() -> list[str]:
    """Return the subject of each study of docs/results/*.csv, and its oracle's result."""
    lines = []
    for study, name in STUDIES.items():
        sized, *others = (line for line in made(name) if line and not line.startswith(("|", "- ")))
        facts = [line for line in others if not line.endswith(":")]
        text = f"- **{study}**: {sized.partition(': ')[2]}. {' '.join(facts)}"
        lines += textwrap.wrap(text, 120, subsequent_indent="  ")
    return lines


def _pieces(folder: Path, condition: str) -> list[Piece]:
    """Load a study's pieces of a condition. Raises FileNotFoundError if there are none."""
    pieces = pieces_in([folder], condition)
    if not pieces:
        raise FileNotFoundError(f"{folder}: no piece of {condition}")
    return pieces


def _students(folder: Path, condition: str) -> list[str]:
    pieces = _pieces(folder, condition)
    main_study = folder == OUTCOMES
    lines = table(pieces, condition, PLANNED if main_study else len(pieces), sized=main_study)
    commits = dict.fromkeys(piece.head["commit"][:7] for piece in pieces)
    return [*lines, f"Made at commit {', '.join(commits)}."]


def _robustness() -> list[str]:
    return robustness_table.table(
        {condition: _pieces(OUTCOMES, condition) for condition in ("clean", "noisy", "shift")}, MAIN_POINT
    )


def _outsiders_mark() -> list[str]:
    """Return r2v with and without the feature that reads the world's marks of outsiders' text."""
    with_it, without = (_pieces(FOLDER / "outsiders_mark" / name, "noisy") for name in ("with", "without"))
    areas = [areas_of(pieces, "noisy", [OURS, "entropy"]) for pieces in (with_it, without)]
    leads = {
        "r2v with the mark": areas[0][0][OURS],
        "r2v without it": areas[1][0][OURS],
        "with it less without it": areas[0][0][OURS] - areas[1][0][OURS],
        "with it, lead over entropy": areas[0][1]["entropy"],
        "without it, lead over entropy": areas[1][1]["entropy"],
    }
    drawn = {name: over_students(values) for name, values in leads.items()}
    rows = [f"| {name} | {draws[0]:.3f} {bounds(draws[1:])} |" for name, draws in drawn.items()]
    return [f"| {len(with_it)} training seeds, noisy | APGR |", "|---|---|", *rows]


def _preference() -> list[str]:
    paths = sorted(preference.OUTCOMES.glob("student-*.jsonl.zst"))
    if not paths:
        raise FileNotFoundError(f"{preference.OUTCOMES}: no piece")
    return ["```text", *preference.table([preference.read_piece(path) for path in paths]), "```"]


def _studies() -> dict[str, Callable[[], list[str]]]:
    """Return every table by its name."""
    tables: dict[str, Callable[[], list[str]]] = {
        "headline": headline,
        "headline in words": sentence,
        "number": number,
        "injections": injections,
        "studies": studies,
        "aims": partial(listed, "Aims:"),
        "make mrp": lambda: results_table.table(mrp_runs.OUTCOMES / "seed-0-default"),
        "make mrp, all runs": mrp_runs.tables,
        "feature groups": lambda: groups_table(_pieces(FOLDER / "students_parts", "noisy"), "noisy"),
        "robustness": _robustness,
        "categories": lambda: categories.table(categories.stored()),
        "guarantee": guarantee.table,
        "held-out scores": held_out_scores.table,
        "mark of outsiders": _outsiders_mark,
        "preference step": _preference,
    }
    tables |= {f"students, {condition}": partial(_students, OUTCOMES, condition) for condition in CONDITIONS}
    for folder in ("clean_trained", "babyai_seeds", "textworld_seeds", "smollm2"):
        tables[folder] = partial(_students, FOLDER / folder, "noisy")
    return tables


TABLES: Mapping[str, Callable[[], list[str]]] = _studies()


@cache
def made(name: str) -> Sequence[str]:
    """Return the lines of a table. Raises FileNotFoundError if its outcomes are missing."""
    return TABLES[name]()


def lines_of(name: str) -> Sequence[str]:
    """Return the lines of a table. Raises UsageError for an unknown name, InputError if its outcomes are missing."""
    if name not in TABLES:
        raise UsageError(f"table {name}: no such table; {nearest(name, TABLES)}")
    try:
        return made(name)
    except FileNotFoundError as error:
        raise InputError(f"table {name}: its outcomes are not in {FOLDER} ({error}); make them first") from error


def included(text: str) -> list[str]:
    """Return the names of the tables that a page includes."""
    return [match[1] for match in _INCLUDED.finditer(text)]


def filled(text: str) -> str:
    """Return the page with every included table up to date."""
    return _INCLUDED.sub(lambda match: match[1] + match[2] + "\n" + "\n".join(lines_of(match[1])) + "\n\n", text)


def csv_files() -> dict[str, str]:
    """Return the text of each file of docs/results by its name. Raises InputError if outcomes are missing."""
    kinds: dict[str, dict[str, Table]] = {kind: {} for kind in (*STUDY_FILES, "parts")}
    for study, name in STUDIES.items():
        for kind, rows in zip(STUDY_FILES, markdown_tables(lines_of(name)), strict=False):
            kinds[kind][study] = rows
        kinds["parts"][study] = parts_table(lines_of(name))
    *leads, runs = markdown_tables(lines_of("make mrp, all runs"))
    kinds["mrp_leads"] = dict(zip(("clean", "noisy", "shift"), leads, strict=True))
    kinds["mrp_runs"] = {"": runs}
    kinds["preference"] = {"": aligned_table(lines_of("preference step")[3])}
    for kind, name in SINGLE_FILES.items():
        kinds[kind] = {name: next(markdown_tables(lines_of(name)))}
    return {f"{kind}.csv": csv_text(studies) for kind, studies in kinds.items()}


def main() -> None:
    """Print the tables; write them into their pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put each table into its page or file")
    arguments = parser.parse_args()
    for name in TABLES:
        try:
            print(f"## {name}\n", *lines_of(name), "", sep="\n")
        except InputError as error:
            print(f"## {name}\n\n{error}\n")
    if arguments.write:
        for page in PAGES:
            page.write_text(filled(page.read_text()))
        FILES.mkdir(exist_ok=True)
        for name, text in csv_files().items():
            (FILES / name).write_text(text)
        plot()


if __name__ == "__main__":
    main()
