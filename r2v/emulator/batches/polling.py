"""Polling: a batch's simulated progress, cancellation, and the faults that polls show."""

from __future__ import annotations

from dataclasses import dataclass

from r2v.emulator.batches.request_results import count_rows, read_rows
from r2v.emulator.server_state import EmulatedBatch, ServerState

RETENTION = {"openai": 30 * 86_400.0, "anthropic": 29 * 86_400.0}
"""Seconds from a batch's creation to the removal of its results."""


@dataclass(frozen=True, kw_only=True)
class BatchView:
    """State of a batch as one poll or listing shows it."""

    progress: float
    """0 just accepted, 1 ended."""
    unknown_status: bool = False
    """True to show a status unknown to clients."""
    canceling: bool = False


def view_batch(state: ServerState, batch: EmulatedBatch, *, poll: bool) -> BatchView:
    """Return a batch's view. A poll advances its progress, a listing does not."""
    with state.lock:
        if poll and batch.ended_at is not None:
            batch.end_looks += 1
        if poll:
            batch.polls += 2 if "second_poller" in batch.faults else 1
            if batch.ended_at is None and state.lifecycle.seconds is None:
                state.save_batch(batch)
        if batch.cancel_at is not None and batch.ended_at is None:
            if not poll or "cancel_never_ends" in batch.faults:
                return BatchView(progress=_progress(state, batch), canceling=True)
            _end(state, batch)
        if poll and "unknown_status" in batch.faults and not batch.puzzled:
            batch.puzzled = True
            return BatchView(progress=min(_progress(state, batch), 0.5), unknown_status=True)
        progress = _progress(state, batch)
        if batch.ended_at is None and (progress >= 1 or (batch.errors and progress > 0)):
            _end(state, batch)
            return BatchView(progress=1.0)
        return BatchView(progress=progress)


def _progress(state: ServerState, batch: EmulatedBatch) -> float:
    if batch.ended_at is not None:
        return 1.0
    return state.lifecycle.progress(batch.polls, state.now() - batch.created_at)


def _end(state: ServerState, batch: EmulatedBatch) -> None:
    batch.ended_at, batch.end_looks = state.now(), 1
    state.save_batch(batch)


def cancel(state: ServerState, batch: EmulatedBatch) -> bool:
    """Start cancellation: keep the requests run so far and refund the rest. Return False if the batch has ended."""
    with state.lock:
        if batch.cancel_at is not None and batch.ended_at is None:
            return True
        if view_batch(state, batch, poll=False).progress >= 1:
            return False
        path, num_run = state.results_path(batch.id), int(_progress(state, batch) * batch.total)
        rows = enumerate(read_rows(path, batch.provider))
        state.ledger.refund(batch.id, [row.custom_id for index, row in rows if index >= num_run and row.kind == "ok"])
        batch.cancel_at, batch.kept = state.now(), num_run
        batch.counts = count_rows(read_rows(path, batch.provider, num_run))
        state.save_batch(batch)
        return True


def archived(state: ServerState, batch: EmulatedBatch) -> bool:
    """True if the batch's results have been removed."""
    return "archived" in batch.faults or state.now() - batch.created_at > RETENTION[batch.provider]
