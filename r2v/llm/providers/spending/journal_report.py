"""What journals say, for a person: what is paid, open and lost; and giving up a batch that is gone.

    for folder in find_journals(root, "20261123-..."):
        print("\\n".join(report(folder)))
    await forget(find_batch(root, "batch_abc"), "batch_abc")

Reading takes no lease, so it may go on beside the process that writes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.errors import InputError
from r2v.llm.providers.spending.journal import Journal
from r2v.llm.providers.spending.journal_state import JournalBatch, JournalState
from r2v.llm.providers.spending.journal_view import JOURNAL_LEASE
from r2v.storage.lease import lease

_PLACES = ("data/runs", "data/served", "outputs/.artifacts", "results/batch_jobs")
_JOURNAL = "journal.jsonl"


@dataclass(frozen=True, kw_only=True)
class ReadJournal:
    """A journal as it stands."""

    folder: Path
    scope: dict[str, Any]
    state: JournalState


def find_journals(root: Path, name: str | None = None) -> list[Path]:
    """Folders of the journals of a run or folder (None: of the whole project), sorted. Raises InputError where there is
    none."""
    given = Path(name) if name else None
    places = [root / place for place in _PLACES]
    if given is not None:
        places = [given] if given.is_dir() else [place / given for place in places]
    found = sorted(Path(at) for place in places for at, _, files in os.walk(place) if _JOURNAL in files)
    if not found:
        raise InputError(f"{name or 'this project'}: no journal of a provider's requests; name a run, or its folder")
    return found


def read_journal(folder: Path) -> ReadJournal:
    """The state of all whole rows. Raises InputError for a line that is no row."""
    state, scope = JournalState(run=""), dict[str, Any]()
    path = folder / _JOURNAL
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break  # torn, or about to be ended
            try:
                row = json.loads(line)
                if row["row"] == "open":
                    state.run, scope = row["run"], dict(row["scope"])
                state.apply(row, 0)
            except (LookupError, TypeError, ValueError, AttributeError):
                raise InputError(f"{path}:{number}: not a row of a journal") from None
    return ReadJournal(folder=folder, scope=scope, state=state)


def report(folder: Path, now: float | None = None) -> Iterator[str]:
    """Lines on one journal: what is paid, what may be lost, and each batch that is open."""
    journal = read_journal(folder)
    state, counts = journal.state, journal.state.counts
    yield f"{folder}  ({' '.join(str(journal.scope[key]) for key in ('provider', 'model') if key in journal.scope)})"
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
    """The folder of the journal that holds this batch open, by the provider's name for it or ours. Raises
    InputError."""
    open_batches = list[str]()
    for folder in find_journals(root):
        for batch in read_journal(folder).state.batches.values():
            if name in (batch.id, batch.key):
                return folder
            open_batches.append(batch.id or batch.key)
    known = ", ".join(open_batches[:5]) or "none"
    raise InputError(f"{name}: no journal of this project holds such a batch open; open: {known}")


async def forget(folder: Path, name: str) -> str:
    """Give up a batch: what its open requests may have cost is booked as lost, and they are asked anew. One line on
    that. Raises LeaseConflict where the journal is being written."""
    with lease(folder / JOURNAL_LEASE):
        journal = Journal(folder / _JOURNAL)
        state = JournalState(run="")
        try:
            for offset, row in journal.open():
                state.run = row["run"] if row["row"] == "open" else state.run
                state.apply(row, offset)
            batch = next((one for one in state.batches.values() if name in (one.id, one.key)), None)
            if batch is None:
                raise InputError(f"{name}: is not open in {folder}")
            left = batch.count - len(batch.accounted)
            usd = batch.usd * left / batch.count
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
