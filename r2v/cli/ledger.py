"""`r2v providers ledger`: what the journals of this checkout have paid, one line a journal.

r2v providers ledger                    # who paid whom, how many answers, USD; the cap of all, and what of it is left
r2v providers ledger --max-usd 50       # no process of this checkout makes their sum pass that, from now on
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from r2v.cli.options import decimal
from r2v.console import text_table
from r2v.constraints import Range
from r2v.storage.paths import ENGINES

_PATIENCE = 30.0
"""Seconds for which other processes may claim and allot."""


def add_command(providers: Any) -> None:
    """Add `ledger` to the subparsers of `providers`."""
    about = "print what the runs and stages of this checkout have paid providers"
    ledger = providers.add_parser("ledger", help=about, description=f"{about[0].upper()}{about[1:]}; asks nobody.")
    cap = ledger.add_mutually_exclusive_group()
    cap.add_argument(
        "--max-usd",
        type=decimal(Range(above=0)),
        metavar="USD",
        help="bound what all runs, stages and games of this checkout may be billed, ever (default: as it is)",
    )
    cap.add_argument("--no-max-usd", action="store_true", help="take that bound away (default: as it is)")
    ledger.set_defaults(act=act)


def act(arguments: argparse.Namespace) -> int:
    """Print the table, after the cap is set. Raises InputError where an entry is damaged, LeaseConflict where a process
    would not heed the cap."""
    from r2v.llm.providers.spending.project import ProjectLedger
    from r2v.storage.lease import lease

    ledger = ProjectLedger(Path())
    if arguments.max_usd is not None or arguments.no_max_usd:
        with lease(ledger.lease, wait=_PATIENCE):
            ledger.set_cap(arguments.max_usd)
    entries = sorted(ledger.entries(), key=lambda entry: (entry.purse, entry.folder, entry.run))
    ledger.require_whole()
    rows = [("journal", "paid by", "model", "answers", "USD", "")]
    total, answers = 0.0, 0
    for entry in entries:
        book = ledger.book(entry)
        total, answers = total + book.usd, answers + book.answered
        model = "/".join(str(value) for value in entry.scope.values())
        payer = "itself" if entry.folder.startswith(entry.purse) else entry.purse
        rows.append((entry.folder, payer, model, f"{book.answered:,}", f"{book.usd:.4f}", book.state))
    if entries:
        print(text_table(rows, right=(3, 4)))
    for line in _engine_lines(Path()):
        print(line)
    cap = "" if ledger.cap is None else f" of ${ledger.cap:.2f}, the cap of all processes"
    print(f"{len(entries)} journals, {answers:,} answers, ${total:.4f} spent or reserved{cap}")
    return 0


def _engine_lines(root: Path) -> Iterator[str]:
    """GPU-hours of the jobs that served a teacher, a line for each model."""
    used: dict[str, float] = {}
    for path in sorted((root / ENGINES).glob("*/usage/*.json")):
        try:
            one = json.loads(path.read_text())
            used[one["model"]] = used.get(one["model"], 0.0) + float(one["gpu_hours"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a job that is writing, or one of another version: no bill rests on it
    for model, hours in used.items():
        yield f"jobs that served {model}: {hours:,.2f} GPU-hours"
