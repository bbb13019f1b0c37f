"""OpenAI endpoints: files and batches."""

from __future__ import annotations

from r2v.emulator.api import openai_views as views
from r2v.emulator.api.calls import Call, Response, as_json, file_pieces
from r2v.emulator.api.openai_checks import check_create, read_lines, validate_batch
from r2v.emulator.batches.lifecycle import accept
from r2v.emulator.batches.polling import BatchView, archived, cancel, view_batch
from r2v.emulator.batches.request_results import read_rows
from r2v.emulator.bodies import ApiError
from r2v.emulator.server_state import EmulatedBatch, ServerState, UploadedFile


def upload(state: ServerState, call: Call) -> Response:
    """POST /v1/files."""
    file_id = state.new_id("file-")
    fields, size = call.form(into=state.file_path(file_id))
    limit = state.limits.openai.bytes
    if size > limit:
        state.file_path(file_id).unlink()
        raise ApiError(400, f"File is too large: it has {size} bytes, {limit} are allowed.")
    faults = state.injector.draw("upload", "openai", "upload")
    late = next((status for status in (404, 400) if f"file_late_{status}" in faults), None)
    file = UploadedFile(
        id=file_id,
        filename=fields["filename"],
        purpose=fields["purpose"],
        bytes=size,
        created_at=state.now(),
        late=late,
    )
    state.save_file(file)
    return call.commit(state, as_json(views.file(file)))


def files(state: ServerState, call: Call) -> Response:
    """GET /v1/files, newest first."""
    with state.lock:
        newest_first = list(reversed(state.files.values()))
    purpose = call.query.get("purpose")
    return as_json(views.page([views.file(file) for file in newest_first if purpose in (None, file.purpose)], call))


def file(state: ServerState, call: Call, name: str) -> Response:
    """GET or DELETE /v1/files/{id}."""
    batch = _batch_of_results(state, name)
    if batch is not None and call.method == "GET":
        result_file = UploadedFile(
            id=name,
            filename=f"{name}.jsonl",
            purpose="batch_output",
            bytes=state.results_path(batch.id).stat().st_size,
            created_at=batch.ended_at or 0.0,
        )
        return as_json(views.file(result_file))
    if name not in state.files:
        raise ApiError(404, f"No such File object: {name}")
    if call.method == "GET":
        return as_json(views.file(state.files[name]))
    state.delete_file(name)
    return as_json({"id": name, "object": "file", "deleted": True})


def content(state: ServerState, call: Call, name: str) -> Response:
    """GET /v1/files/{id}/content."""
    if name in state.files:
        return Response(chunks=file_pieces(state.file_path(name)), content_type="application/octet-stream")
    batch = _batch_of_results(state, name)
    if batch is None or archived(state, batch):
        raise ApiError(404, f"No such File object: {name}")
    path, kinds, num_run = state.results_path(batch.id), views.kinds_in(name), batch.kept
    return call.download(state, lambda: (row for row in read_rows(path, "openai", num_run) if row.kind in kinds))


def _batch_of_results(state: ServerState, name: str) -> EmulatedBatch | None:
    """Return the ended batch of a result file, None without one."""
    batch = state.batches.get(views.batch_id(name))
    return batch if batch is not None and batch.ended_at is not None and batch.provider == "openai" else None


def create(state: ServerState, call: Call) -> Response:
    """POST /v1/batches. A batch with invalid lines is accepted too; a later poll shows their errors."""
    body = call.json()
    check_create(body)
    source = state.files.get(body["input_file_id"])
    if source is not None and source.late and state.now() - source.created_at < state.timing.late:
        raise ApiError(source.late, f"No such File object: {source.id}")
    if source is None:
        raise ApiError(400, f"No such File object: {body['input_file_id']}")
    if state.created_lately("openai") >= state.limits.openai.batches_per_hour:
        raise ApiError(429, "Too many batches in the last hour", headers={"retry-after": "60"})
    faults = state.injector.draw("batch", "openai", "create")
    if "token_limit_refused" in faults:
        raise ApiError(
            429,
            "Enqueued token limit reached; try again once some batches have been completed.",
            code="token_limit_exceeded",
            kind="tokens",
        )
    batch = EmulatedBatch(
        id=state.new_id("batch_"),
        provider="openai",
        created_at=state.now(),
        total=0,
        faults=sorted(faults),
        endpoint=body["endpoint"],
        input_file_id=source.id,
        metadata=body.get("metadata"),
    )
    lines = state.file_path(source.id)
    validate_batch(state, batch, lines)
    if batch.errors:
        state.save_batch(batch)
    else:
        accept(state, batch, ((line["custom_id"], line["body"]) for line in read_lines(lines)))
    return call.commit(state, as_json(views.batch(state, batch, BatchView(progress=0.0))))


def batches(state: ServerState, call: Call) -> Response:
    """GET /v1/batches, newest first."""
    shown = [batch for batch in state.batches_of("openai") if not state.is_hidden(batch)]
    return as_json(
        views.page([views.batch(state, batch, view_batch(state, batch, poll=False)) for batch in shown], call)
    )


def poll(state: ServerState, call: Call, name: str) -> Response:
    """GET /v1/batches/{id}."""
    batch = _find(state, name)
    return as_json(views.batch(state, batch, view_batch(state, batch, poll=True)))


def stop(state: ServerState, call: Call, name: str) -> Response:
    """POST /v1/batches/{id}/cancel."""
    batch = _find(state, name)
    if batch.errors or not cancel(state, batch):
        raise ApiError(400, "Cannot cancel a batch that has ended.")
    return as_json(views.batch(state, batch, view_batch(state, batch, poll=False)))


def _find(state: ServerState, name: str) -> EmulatedBatch:
    batch = state.batches.get(name)
    if batch is None or batch.provider != "openai":
        raise ApiError(404, f"No batch found with id '{name}'.")
    return batch
