"""A batch as a poll shows it: how far it claims to be, what a cancel stopped, which faults it shows."""

from __future__ import annotations

from dataclasses import dataclass

from r2v.emulator.batches.request_results import count_rows, read_rows
from r2v.emulator.server_state import Batch, Site

RETENTION = {"openai": 30 * 86_400.0, "anthropic": 29 * 86_400.0}
"""Seconds after a batch's creation until its results are gone."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one look sees."""

    progress: float
    """0 just accepted, 1 ended."""
    puzzling: bool = False
    """The status is one that no client knows."""
    canceling: bool = False


def look(site: Site, batch: Batch, *, poll: bool) -> Look:
    """Look at a batch; a poll moves it on, a listing does not."""
    with site.lock:
        if poll and batch.ended_at is not None:
            batch.end_looks += 1
        if poll:
            batch.polls += 2 if "second_poller" in batch.faults else 1
            if batch.ended_at is None and site.lifecycle.seconds is None:
                site.save_batch(batch)
        if batch.cancel_at is not None and batch.ended_at is None:
            if not poll or "cancel_never_ends" in batch.faults:
                return Look(progress=_progress(site, batch), canceling=True)
            _end(site, batch)
        if poll and "unknown_status" in batch.faults and not batch.puzzled:
            batch.puzzled = True
            return Look(progress=min(_progress(site, batch), 0.5), puzzling=True)
        progress = _progress(site, batch)
        if batch.ended_at is None and (progress >= 1 or (batch.errors and progress > 0)):
            _end(site, batch)
            return Look(progress=1.0)
        return Look(progress=progress)


def _progress(site: Site, batch: Batch) -> float:
    if batch.ended_at is not None:
        return 1.0
    return site.lifecycle.progress(batch.polls, site.now() - batch.created_at)


def _end(site: Site, batch: Batch) -> None:
    batch.ended_at, batch.end_looks = site.now(), 1
    site.save_batch(batch)


def cancel(site: Site, batch: Batch) -> bool:
    """Begin to cancel: what has been run by now is kept, the rest is booked back. False: it has ended."""
    with site.lock:
        if batch.cancel_at is not None and batch.ended_at is None:
            return True
        if look(site, batch, poll=False).progress >= 1:
            return False
        path, kept = site.rows_path(batch.id), int(_progress(site, batch) * batch.total)
        rows = enumerate(read_rows(path, batch.provider))
        site.ledger.refund(batch.id, [row.custom_id for index, row in rows if index >= kept and row.kind == "ok"])
        batch.cancel_at, batch.kept = site.now(), kept
        batch.counts = count_rows(read_rows(path, batch.provider, kept))
        site.save_batch(batch)
        return True


def archived(site: Site, batch: Batch) -> bool:
    """Whether its results are gone."""
    return "archived" in batch.faults or site.now() - batch.created_at > RETENTION[batch.provider]
