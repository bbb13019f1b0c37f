"""Opening of a journal: read its rows, check its scope, and book the calls in flight of a dead process."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r2v.errors import InputError
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.spending.budget import SharedBudget, SpendTracker
from r2v.llm.providers.spending.journal import Journal
from r2v.llm.providers.spending.journal_state import JournalState
from r2v.log import logger

JOURNAL_VERSION = 1


async def open_journal(journal: Journal, scope: Mapping[str, Any], rate: Rate, budget: SharedBudget) -> SpendTracker:
    """Return the tracker of a journal with the state of all its rows.

    scope: the journal's owner (provider, model). Raise InputError for a journal of another scope or version, and for a
    malformed line.
    """
    state = JournalState(run="")
    _require_journal(journal.path)
    for number, (offset, row) in enumerate(journal.open(), 1):
        try:
            if row["row"] == "open":
                _check_scope(row, scope, journal.path)
                state.run = row["run"]
            state.apply(row, offset)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{journal.path}:{number}: no row that can follow those before it ({error!r}), and the journal records "
                "payments: restore the file from a backup, or start a new run (which pays anew)"
            ) from None
    tracker = SpendTracker(journal, state, rate, budget)
    if not state.run:
        state.run = secrets.token_hex(4)
        await tracker.write({"row": "open", "version": JOURNAL_VERSION, "run": state.run, "scope": dict(scope)})
    await _book_lost_calls(tracker)
    return tracker


def _require_journal(path: Path) -> None:
    """Raise InputError if the input files of batches exist without their journal."""
    inputs = sorted((path.parent / "inputs").glob("*.jsonl"))
    if inputs and not path.exists():
        raise InputError(
            f"{path}: is gone, and {inputs[0]} is the input of a batch that it records: restore the journal from a "
            "backup, or start a new run (which pays anew)"
        )


async def _book_lost_calls(tracker: SpendTracker) -> None:
    """Book the worst case of direct calls that were in flight when the last process died. Unlike batches they cannot be
    looked up, so their requests are sent again."""
    lost = dict(tracker.state.calls)
    if not lost:
        return
    logger.warning(
        "  direct calls of the last process have no answer and may have been billed: calls=%d at_most=$%.4f",
        len(lost),
        sum(lost.values()),
    )
    await tracker.write(
        *({"row": "lost", "id": custom_id, "usd": usd, "why": "the process ended"} for custom_id, usd in lost.items())
    )


def _check_scope(row: Mapping[str, Any], scope: Mapping[str, Any], path: Path) -> None:
    """Raise InputError if a journal's first row has another version or another scope."""
    if row["version"] != JOURNAL_VERSION:
        raise InputError(
            f"{path}: is of version {row['version']}, this R2V writes {JOURNAL_VERSION}; finish it with the R2V that "
            "began it"
        )
    recorded = row["scope"]
    differences = [
        f"{name}={recorded.get(name)} there, {scope.get(name)} here"
        for name in sorted({*recorded, *scope})
        if recorded.get(name) != scope.get(name)
    ]
    if differences:
        raise InputError(
            f"{path}: belongs to another configuration ({'; '.join(differences)}); use that one, or start a new run"
        )
