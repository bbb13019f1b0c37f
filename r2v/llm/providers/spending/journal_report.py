"""Journal report for a person: paid, open and lost amounts; and giving up a batch that is gone.

Reading takes no lease, so it may run while another process writes the journal.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from r2v.errors import InputError
from r2v.llm.providers.spending.journal import Journal
from r2v.llm.providers.spending.journal_state import JournalBatch, JournalState
from r2v.llm.providers.spending.journal_view import JOURNAL_LEASE
from r2v.storage.lease import lease

_ROOTS = ("data/runs", "data/served", "outputs/.artifacts", "results/batch_jobs")
_JOURNAL = "journal.jsonl"


def find_journals(root: Path, name: str | None = None) -> list[Path]:
    """Return the sorted folders of the journals of a run or folder (None: of the whole project). Raise InputError if
    there are none."""
    given = Path(name) if name else None
    folders = [root / relative for relative in _ROOTS]
    if given is not None:
        folders = [given] if given.is_dir() else [folder / given for folder in folders]
    journals = sorted(Path(at) for folder in folders for at, _, files in os.walk(folder) if _JOURNAL in files)
    if not journals:
        raise InputError(f"{name or 'this project'}: no journal of a provider's requests; name a run, or its folder")
    return journals


def read_journal(folder: Path) -> JournalState:
    """Return the state after all complete rows. Raise InputError for a malformed line."""
    state, path = JournalState(), folder / _JOURNAL
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break  # torn, or still being written
            try:
                state.apply(json.loads(line), 0)
            except (LookupError, TypeError, ValueError, AttributeError):
                raise InputError(f"{path}:{number}: not a row of a journal") from None
    return state


def report(folder: Path, now: float | None = None) -> Iterator[str]:
    """Yield lines on one journal: paid and lost amounts, and each open batch."""
    state = read_journal(folder)
    scope, counts = state.scope, state.counts
    yield f"{folder}  ({' '.join(str(scope[key]) for key in ('provider', 'model') if key in scope)})"
    lost = (
        f", at most ${state.lost_usd:.4f} more for {counts['lost']} whose answers were lost" if counts["lost"] else ""
    )
    yield f"  paid  ${state.spent:.4f} for {counts['answered']} answers ({counts['fatal']} requests refused){lost}"
    if not (state.batches or state.calls):
        yield "  open  nothing"
    for batch in state.batches.values():
        age = ((time.time() if now is None else now) - batch.began) / 3600
        yield (
            f"  open  {batch.id or batch.key}: {_step(batch)}; {len(batch.accounted)} of {batch.count} requests have a "
            f"result, at most ${batch.usd:.4f}, {age:.1f} h old"
        )
    if state.calls:
        yield f"  open  {len(state.calls)} direct calls, at most ${sum(state.calls.values()):.4f}"


def _step(batch: JournalBatch) -> str:
    if batch.ended:
        return "ended, its results not all read"
    if batch.id is not None:
        return "at the provider"
    return "to be created" if batch.sent_at is None else "perhaps created: it will be looked for"


def find_batch(root: Path, name: str) -> Path:
    """Return the folder of the journal with this open batch, by the provider's id or R2V's key. Raise InputError if
    none has it."""
    open_batches = list[str]()
    for folder in find_journals(root):
        for batch in read_journal(folder).batches.values():
            if name in (batch.id, batch.key):
                return folder
            open_batches.append(batch.id or batch.key)
    listed = ", ".join(open_batches[:5]) or "none"
    raise InputError(f"{name}: no journal of this project holds such a batch open; open: {listed}")


async def forget(folder: Path, name: str) -> str:
    """Give up a batch: book the worst case of its open requests as lost, so that they are sent anew. Return one line on
    it. Raise LeaseConflict if another process writes the journal."""
    with lease(folder / JOURNAL_LEASE):
        journal = Journal(folder / _JOURNAL)
        state = JournalState()
        try:
            for offset, row in journal.open():
                state.apply(row, offset)
            batch = next((entry for entry in state.batches.values() if name in (entry.id, entry.key)), None)
            if batch is None:
                raise InputError(f"{name}: is not open in {folder}")
            left = batch.count - len(batch.accounted)
            usd = batch.usd * left / batch.count
            # one write: booked as lost without being dropped, the batch would count twice
            await journal.write(
                {"row": "lost", "id": batch.key, "usd": usd, "why": "given up"},
                {"row": "dropped", "batch": batch.key, "why": "given up"},
            )
        finally:
            journal.close()
        (folder / "inputs" / f"{batch.key}.jsonl").unlink(missing_ok=True)
    return (
        f"{name}: given up; {left} of its {batch.count} requests have no answer and are asked anew by the next run, "
        f"at most ${usd:.4f} stay booked for them"
    )
