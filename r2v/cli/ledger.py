"""`r2v providers ledger`: what the journals of this checkout have paid, one line a journal.

r2v providers ledger              # who paid whom, how many answers, USD; and what of a cap would be left
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from r2v.console import text_table


def add_command(providers: Any) -> None:
    """Add `ledger` to the subparsers of `providers`."""
    about = "print what the runs and stages of this checkout have paid providers"
    ledger = providers.add_parser("ledger", help=about, description=f"{about[0].upper()}{about[1:]}; asks nobody.")
    ledger.set_defaults(act=act)


def act(arguments: argparse.Namespace) -> int:
    """Print the table. Raises InputError where an entry is damaged."""
    from r2v.llm.providers.spending.project import ProjectLedger

    ledger = ProjectLedger(Path())
    entries = sorted(ledger.entries(), key=lambda entry: (entry.purse, entry.folder, entry.run))
    ledger.require_whole()
    rows = [("journal", "model", "answers", "USD", "")]
    total, answers = 0.0, 0
    for entry in entries:
        book = ledger.book(entry)
        total, answers = total + book.usd, answers + book.answered
        model = "/".join(str(value) for value in entry.scope.values())
        rows.append((entry.folder, model, f"{book.answered:,}", f"{book.usd:.4f}", book.state))
    if entries:
        print(text_table(rows, right=(2, 3)))
    print(f"{len(entries)} journals, {answers:,} answers, ${total:.4f} spent or reserved")
    return 0
