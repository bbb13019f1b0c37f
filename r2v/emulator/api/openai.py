"""The OpenAI half: files, batches, chat completions, responses."""

from __future__ import annotations

from r2v.emulator.api import openai_views as views
from r2v.emulator.api.calls import Call, Refused, Response, as_json, file_pieces
from r2v.emulator.api.openai_checks import check_create, read_lines, refusals
from r2v.emulator.batches.lifecycle import Entry, accept
from r2v.emulator.batches.polling import Look, archived, cancel, look
from r2v.emulator.batches.request_results import read_rows
from r2v.emulator.server_state import Batch, File, Site


def upload(site: Site, call: Call) -> Response:
    """POST /v1/files."""
    file_id = site.new_id("file-")
    fields, size = call.form(into=site.file_path(file_id))
    limit = site.limits.openai.bytes
    if size > limit:
        site.file_path(file_id).unlink()
        raise Refused(400, f"File is too large: it has {size} bytes, {limit} are allowed.")
    faults = site.injector.draw("upload", "openai", "upload")
    late = next((status for status in (404, 400) if f"file_late_{status}" in faults), None)
    file = File(
        id=file_id, filename=fields["filename"], purpose=fields["purpose"], bytes=size, created_at=site.now(), late=late
    )
    site.save_file(file)
    return call.commit(site, as_json(views.file(file)))


def files(site: Site, call: Call) -> Response:
    """GET /v1/files, newest first."""
    with site.lock:
        known = list(reversed(site.files.values()))
    purpose = call.query.get("purpose")
    return as_json(views.page([views.file(file) for file in known if purpose in (None, file.purpose)], call))


def file(site: Site, call: Call, name: str) -> Response:
    """GET or DELETE /v1/files/{id}."""
    batch = _batch_of_results(site, name)
    if batch is not None and call.method == "GET":
        return as_json(views.result_file(name, batch, site.rows_path(batch.id).stat().st_size))
    if name not in site.files:
        raise Refused(404, f"No such File object: {name}")
    if call.method == "GET":
        return as_json(views.file(site.files[name]))
    site.delete_file(name)
    return as_json({"id": name, "object": "file", "deleted": True})


def content(site: Site, call: Call, name: str) -> Response:
    """GET /v1/files/{id}/content."""
    if name in site.files:
        return Response(chunks=file_pieces(site.file_path(name)), content_type="application/octet-stream")
    batch = _batch_of_results(site, name)
    if batch is None or archived(site, batch):
        raise Refused(404, f"No such File object: {name}")
    path, kinds, kept = site.rows_path(batch.id), views.kinds_in(name), batch.kept
    return call.download(site, lambda: (row for row in read_rows(path, "openai", kept) if row.kind in kinds))


def _batch_of_results(site: Site, name: str) -> Batch | None:
    """The ended batch that this result file belongs to."""
    batch = site.batches.get(views.batch_id(name))
    return batch if batch is not None and batch.ended_at is not None and batch.provider == "openai" else None


def create(site: Site, call: Call) -> Response:
    """POST /v1/batches: accepted whatever its lines are; bad lines show when it has been validated."""
    body = call.json()
    check_create(body)
    source = site.files.get(body["input_file_id"])
    if source is not None and source.late and site.now() - source.created_at < site.timing.late:
        raise Refused(source.late, f"No such File object: {source.id}")
    if source is None:
        raise Refused(400, f"No such File object: {body['input_file_id']}")
    if site.created_lately("openai") >= site.limits.openai.batches_per_hour:
        raise Refused(429, "Too many batches in the last hour", headers={"retry-after": "60"})
    faults = site.injector.draw("batch", "openai", "create")
    if "token_limit_refused" in faults:
        raise Refused(
            429,
            "Enqueued token limit reached; try again once some batches have been completed.",
            code="token_limit_exceeded",
            kind="tokens",
        )
    batch = Batch(
        id=site.new_id("batch_"),
        provider="openai",
        created_at=site.now(),
        total=0,
        faults=sorted(faults),
        endpoint=body["endpoint"],
        input_file_id=source.id,
        metadata=body.get("metadata"),
    )
    lines = site.file_path(source.id)
    refusals(site, batch, lines)
    if batch.errors:
        site.save_batch(batch)
    else:
        accept(site, batch, (Entry(line["custom_id"], line["body"]) for line in read_lines(lines)))
    return call.commit(site, as_json(views.batch(site, batch, Look(progress=0.0))))


def batches(site: Site, call: Call) -> Response:
    """GET /v1/batches, newest first."""
    shown = [batch for batch in site.batches_of("openai") if not site.is_hidden(batch)]
    return as_json(views.page([views.batch(site, batch, look(site, batch, poll=False)) for batch in shown], call))


def poll(site: Site, call: Call, name: str) -> Response:
    """GET /v1/batches/{id}."""
    batch = _find(site, name)
    return as_json(views.batch(site, batch, look(site, batch, poll=True)))


def stop(site: Site, call: Call, name: str) -> Response:
    """POST /v1/batches/{id}/cancel."""
    batch = _find(site, name)
    if batch.errors or not cancel(site, batch):
        raise Refused(400, "Cannot cancel a batch that has ended.")
    return as_json(views.batch(site, batch, look(site, batch, poll=False)))


def _find(site: Site, name: str) -> Batch:
    batch = site.batches.get(name)
    if batch is None or batch.provider != "openai":
        raise Refused(404, f"No batch found with id '{name}'.")
    return batch
