"""`r2v providers status | reconcile | forget | ledger`: journals of paid, open and lost requests.

r2v providers status RUN                # the journals' content; no network
r2v providers reconcile RUN             # query the provider and collect ended batches; send no request
r2v providers forget BATCH              # give up one batch whose results are lost
r2v providers ledger                    # payers, providers, answers and USD; the cap of all and its remainder
r2v providers ledger --max-usd 50       # from now on no process of this checkout may exceed this sum
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
"""Seconds that `reconcile` waits for the provider, and `ledger` for the lease of other processes."""


def add_commands(providers: Any) -> None:
    """Add the four subcommands to `r2v providers`."""
    status = add_word(providers, "status", "print paid, open and lost requests of journals; no network", _status)
    _run_argument(status)
    about = "query the provider for open batches, and collect those that ended"
    reconcile = add_word(providers, "reconcile", about, _reconcile)
    _run_argument(reconcile)
    runs_code(reconcile)  # a journal may name a custom provider
    forget = add_word(providers, "forget", "give up one batch with lost results; the next run sends it anew", _forget)
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
        if journal.batches:
            asyncio.run(_collect_batches(folder, journal.scope))
        print("\n".join(report(folder)), flush=True)
    return 0


async def _collect_batches(folder: Path, scope: dict[str, Any]) -> None:
    """Collect the ended batches of a journal. Raises UsageError if it names no provider, or no key is set."""
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
        await ProviderRemote(provider, rate, folder, policy, scope=scope).collect_batches(_PATIENCE)
    except Interrupted:
        return  # the report lists the others as open


def _forget(arguments: argparse.Namespace) -> int:
    import asyncio

    from r2v.llm.providers.spending.journal_report import find_batch, forget

    print(asyncio.run(forget(find_batch(Path(), arguments.batch), arguments.batch)), flush=True)
    return 0


def _add_ledger(providers: Any) -> None:
    about = "print the payments of this checkout's runs and stages to providers; no network"
    ledger = add_word(providers, "ledger", about, _ledger)
    cap = ledger.add_mutually_exclusive_group()
    cap.add_argument(
        "--max-usd",
        type=decimal(Range(above=0)),
        metavar="USD",
        help="cap the bill of all runs, stages and games of this checkout, ever (default: unchanged)",
    )
    cap.add_argument("--no-max-usd", action="store_true", help="remove that cap (default: unchanged)")


def _ledger(arguments: argparse.Namespace) -> int:
    """Set the cap and print the table. Raises InputError for a damaged entry, LeaseConflict if a running
    process would ignore the cap."""
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
    """Yield a line on the GPU-hours of teacher servers for each model."""
    used: dict[str, float] = {}
    for path in sorted((root / ENGINES).glob("*/usage/*.json")):
        try:
            usage = json.loads(path.read_text())
            used[usage["model"]] = used.get(usage["model"], 0.0) + float(usage["gpu_hours"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # being written, or of another version: no bill depends on it
    for model, hours in used.items():
        yield f"jobs that served {model}: {hours:,.2f} GPU-hours"
