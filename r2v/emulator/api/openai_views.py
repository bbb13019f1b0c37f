"""OpenAI's objects: batches and files as its API shows them."""

from __future__ import annotations

from typing import Any

from r2v.emulator.api.calls import Call
from r2v.emulator.batches.polling import BatchView
from r2v.emulator.bodies import ApiError
from r2v.emulator.server_state import EmulatedBatch, ServerState, UploadedFile

DAY = 86_400
_OUTPUT, _ERRORS = "-output", "-errors"
_FILE = "file-"


def batch_id(file: str) -> str:
    """Return the batch id in a result file's name."""
    return file.removeprefix(_FILE).removesuffix(_OUTPUT).removesuffix(_ERRORS)


def kinds_in(file: str) -> tuple[str, ...]:
    """Return the kinds of rows in a result file."""
    return ("ok",) if file.endswith(_OUTPUT) else ("error", "expired", "canceled")


def file(file: UploadedFile) -> dict[str, Any]:
    """Return the object of an uploaded file or a result file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def page(objects: list[dict[str, Any]], call: Call) -> dict[str, Any]:
    """Return a page of a listing: at most `limit` objects behind `after`. Raises ApiError."""
    names = [obj["id"] for obj in objects]
    after = call.query.get("after")
    if after is not None and after not in names:
        raise ApiError(400, f"after: no {after} in this list")
    start = 0 if after is None else names.index(after) + 1
    shown = objects[start : start + call.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + len(shown) < len(objects),
    }


def batch(state: ServerState, batch: EmulatedBatch, view: BatchView) -> dict[str, Any]:
    """Return a batch's object as this poll shows it."""
    status = _status(batch, view)
    times: dict[str, int | None] = {
        f"{name}_at": None
        for name in ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    }
    if batch.cancel_at is not None:
        times["cancelling_at"] = int(batch.cancel_at)
    if f"{status}_at" in times:
        times[f"{status}_at"] = int(batch.ended_at or state.now())
    created = int(batch.created_at)
    shown: dict[str, Any] = {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": status,
        "metadata": batch.metadata,
        "created_at": created,
        "expires_at": created + DAY,
        "errors": None,
        "request_counts": _counts(batch, view),
        "model": batch.model,
        "output_file_id": None,
        "error_file_id": None,
        **times,
    }
    if status == "failed":
        shown["errors"] = {"object": "list", "data": batch.errors}
    elif batch.ended_at is not None and not view.unknown_status:
        shown |= _file_ids(batch) | {"usage": _usage(batch)}
    return shown


def _status(batch: EmulatedBatch, view: BatchView) -> str:
    if view.unknown_status:
        return "under_review"
    if batch.errors and view.progress > 0:
        return "failed"
    if view.canceling:
        return "cancelling"
    if view.progress <= 0:
        return "validating"
    if view.progress < 1:
        return "finalizing" if view.progress > 0.6 else "in_progress"
    if batch.cancel_at is not None:
        return "cancelled"
    return "expired" if any(fault.startswith("expired_") for fault in batch.faults) else "completed"


def _counts(batch: EmulatedBatch, view: BatchView) -> dict[str, int]:
    """Return the request counts, zero during validation. Requests without a result line count only in the total."""
    if batch.errors or view.progress <= 0 or ("counts_zero" in batch.faults and view.progress < 1):
        return {"total": 0, "completed": 0, "failed": 0}
    failed = sum(batch.counts.get(kind, 0) for kind in ("error", "expired", "canceled"))
    return {
        "total": batch.total,
        "completed": int(view.progress * batch.counts.get("ok", 0)),
        "failed": int(view.progress * failed),
    }


def _file_ids(batch: EmulatedBatch) -> dict[str, str | None]:
    late = "file_id_late" in batch.faults and batch.end_looks <= 1
    if late or "expired_no_files" in batch.faults:
        return {}
    nothing = "" if "completed_empty_output" in batch.faults else None
    output, errors = f"{_FILE}{batch.id}{_OUTPUT}", f"{_FILE}{batch.id}{_ERRORS}"
    return {
        "output_file_id": output if batch.counts.get("ok") else nothing,
        "error_file_id": errors if any(batch.counts.get(kind) for kind in kinds_in(errors)) else None,
    }


def _usage(batch: EmulatedBatch) -> dict[str, Any]:
    tokens = {name: batch.tokens.get(name, 0) for name in ("in", "out", "cached")}
    return {
        "input_tokens": tokens["in"],
        "input_tokens_details": {"cached_tokens": tokens["cached"]},
        "output_tokens": tokens["out"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens["in"] + tokens["out"],
    }
