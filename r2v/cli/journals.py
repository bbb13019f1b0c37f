"""`r2v providers status | reconcile | forget | ledger`: journals of what was paid, is open at a provider, or lost.

r2v providers status RUN                # what the journals say; asks nobody
r2v providers reconcile RUN             # asks the provider, brings home what has ended, sends nothing
r2v providers forget BATCH              # a batch that is gone is given up alone
r2v providers ledger                    # who paid whom, how many answers, USD; the cap of all, and what of it is left
r2v providers ledger --max-usd 50       # no process of this checkout makes their sum pass that, from now on
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from r2v.cli.options import add_word, decimal, runs_code
from r2v.console import text_table
from r2v.constraints import Range
from r2v.errors import Interrupted, UsageError
from r2v.storage.paths import ENGINES

_PATIENCE = 30.0
"""Seconds that `reconcile` gives the provider, and `ledger` other processes to claim and allot."""


def add_commands(providers: Any) -> None:
    """Add the four to the commands of `r2v providers`."""
    status = add_word(providers, "status", "what journals say is paid, open and lost; asks nobody", _status)
    _run_argument(status)
    about = "ask the provider for open batches, and bring home what ended"
    reconcile = add_word(providers, "reconcile", about, _reconcile)
    _run_argument(reconcile)
    runs_code(reconcile)  # a provider of one's own, as a journal names it
    forget = add_word(providers, "forget", "give up one batch whose results are gone; the next run asks anew", _forget)
    forget.add_argument("batch", metavar="BATCH", help="the batch, by the provider's name for it or the journal's")
    _add_ledger(providers)


def _run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run, or a folder with journals (default: all journals of the project)"
    )


def _status(arguments: argparse.Namespace) -> int:
    from r2v.llm.providers.spending.journal_report import find_journals, report

    for folder in find_journals(Path(), arguments.run):
        print("\n".join(report(folder)), flush=True)
    return 0


def _reconcile(arguments: argparse.Namespace) -> int:
    import asyncio

    from r2v.llm.providers.spending.journal_report import find_journals, read_journal, report

    for folder in find_journals(Path(), arguments.run):
        journal = read_journal(folder)
        if journal.state.batches:
            asyncio.run(_bring_home(folder, journal.scope))
        print("\n".join(report(folder)), flush=True)
    return 0


async def _bring_home(folder: Path, scope: dict[str, Any]) -> None:
    """Collect what has ended of a journal's batches. Raises UsageError where it does not say whose they are, or
    no key is set."""
    from r2v.config.models import SELF_HOSTED
    from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
    from r2v.llm.providers.factory import make_provider
    from r2v.llm.providers.prices import rate_of
    from r2v.llm.providers.remote import ProviderRemote

    if "provider" not in scope or "model" not in scope:
        raise UsageError(f"{folder}: its journal names no provider and model; run its own command again instead")
    endpoint = scope.get("endpoint")
    if endpoint == SELF_HOSTED:
        raise UsageError(f"{folder}: its endpoint is a machine of your own; run its own command again instead")
    rate = rate_of(scope["provider"], scope["model"], base_url=endpoint)
    provider = make_provider(scope["provider"], rate, base_url=endpoint)
    policy = replace(DispatchPolicy(mode="batch"), poll_seconds=5.0)
    try:
        await ProviderRemote(provider, rate, folder, policy, scope=scope).bring_home(_PATIENCE)
    except Interrupted:
        return  # what has not ended is told as open


def _forget(arguments: argparse.Namespace) -> int:
    import asyncio

    from r2v.llm.providers.spending.journal_report import find_batch, forget

    print(asyncio.run(forget(find_batch(Path(), arguments.batch), arguments.batch)), flush=True)
    return 0


def _add_ledger(providers: Any) -> None:
    about = "print what the runs and stages of this checkout have paid providers; asks nobody"
    ledger = add_word(providers, "ledger", about, _ledger)
    cap = ledger.add_mutually_exclusive_group()
    cap.add_argument(
        "--max-usd",
        type=decimal(Range(above=0)),
        metavar="USD",
        help="bound what all runs, stages and games of this checkout may be billed, ever (default: as it is)",
    )
    cap.add_argument("--no-max-usd", action="store_true", help="take that bound away (default: as it is)")


def _ledger(arguments: argparse.Namespace) -> int:
    """Print the table, after the cap is set. Raises InputError where an entry is damaged, LeaseConflict where a process
    would not heed the cap."""
    from r2v.llm.providers.spending.project import ProjectLedger
    from r2v.storage.lease import lease

    ledger = ProjectLedger(Path())
    if arguments.max_usd is not None or arguments.no_max_usd:
        with lease(ledger.lease, wait=_PATIENCE):
            ledger.set_cap(arguments.max_usd)
    entries = sorted(ledger.entries(), key=lambda entry: (entry.payer, entry.folder, entry.run))
    ledger.require_whole()
    rows = [("journal", "paid by", "model", "answers", "USD", "")]
    total, answers = 0.0, 0
    for entry in entries:
        book = ledger.book(entry)
        total, answers = total + book.usd, answers + book.answered
        model = "/".join(str(value) for value in entry.scope.values())
        payer = "itself" if entry.folder.startswith(entry.payer) else entry.payer
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
