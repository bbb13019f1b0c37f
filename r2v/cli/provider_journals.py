"""`r2v providers status | reconcile | forget`: what a project has paid, what is open at a provider, what is lost.

r2v providers status RUN          # what the journals say; asks nobody
r2v providers reconcile RUN       # asks the provider, brings home what has ended, sends nothing
r2v providers forget BATCH        # a batch that is gone is given up alone
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from r2v.cli.options import runs_code
from r2v.errors import Interrupted, UsageError

_PATIENCE = 30.0
"""Seconds that `reconcile` gives the provider."""


def add_commands(providers: Any) -> None:
    """Add the three to the commands of `r2v providers`."""
    status = providers.add_parser("status", help="what journals say is paid, open and lost; asks nobody")
    _run_argument(status)
    status.set_defaults(act=_status)
    reconcile = providers.add_parser("reconcile", help="ask the provider for open batches, and bring home what ended")
    _run_argument(reconcile)
    runs_code(reconcile)  # a provider of one's own, as a journal names it
    reconcile.set_defaults(act=_reconcile)
    forget = providers.add_parser("forget", help="give up one batch whose results are gone; the next run asks anew")
    forget.add_argument("batch", metavar="BATCH", help="the batch, by the provider's name for it or the journal's")
    forget.set_defaults(act=_forget)


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
