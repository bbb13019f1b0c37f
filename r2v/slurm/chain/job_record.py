"""The record of a Slurm job: the files that it writes about itself, in a folder with no other writer.

entry = job_record.record(root, "desk_noisy", "104")      # start, error, exit, events; None for missing files
progressed(entry, restart=1, earlier=[])                  # True if this start got further than those before
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from r2v.log import logger
from r2v.slurm.chain.chain import folder
from r2v.storage.artifact_manifest import Damaged
from r2v.storage.integrity import read_hashed

HELPERS_FILE = "helpers.json"
"""Ids of the helper arrays that a job has submitted."""


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The files that a Slurm job wrote about itself; None and [] for missing ones."""

    folder: Path
    start: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    waits: list[dict[str, Any]] = field(default_factory=list)
    """The waits, oldest first: at, restart, wait, why (None: it is over), until."""
    helpers: tuple[str, ...] = ()
    """Ids of its helper arrays."""

    @property
    def restart(self) -> int:
        """The number of its last start, from 0 on."""
        return int((self.start or {}).get("restart", 0))

    @property
    def last_exit(self) -> dict[str, Any] | None:
        """The end of its last start; None if only an earlier start ended, before a requeue."""
        return self.exit if self.exit and int(self.exit.get("restart", 0)) >= self.restart else None

    @property
    def seconds(self) -> float | None:
        """Seconds from its last start to its end, or to now; None if it never began."""
        if self.start is None:
            return None
        ended = datetime.fromisoformat(self.exit["at"]) if self.exit else datetime.now(UTC)
        return max(0.0, (ended - datetime.fromisoformat(self.start["at"])).total_seconds())


def record_folder(root: Path, name: str, job_id: str) -> Path:
    """Return the folder of a Slurm job's record."""
    return folder(root, name) / "jobs" / job_id


def record(root: Path, name: str, job_id: str) -> JobRecord:
    """Return the record of a Slurm job."""
    return record_at(record_folder(root, name, job_id))


def record_at(files: Path) -> JobRecord:
    """Return the record in this folder."""
    lines = list(_lines(files / "events.jsonl"))
    return JobRecord(
        folder=files,
        start=read_object(files / "start.json"),
        error=read_object(files / "error.json"),
        exit=read_object(files / "exit.json"),
        events=[line for line in lines if "wait" not in line],
        waits=[line for line in lines if "wait" in line],
        helpers=tuple(map(str, (read_object(files / HELPERS_FILE) or {}).get("arrays", ()))),
    )


def read_object(path: Path) -> dict[str, Any] | None:
    """Return a file's JSON object; None if it is missing, or damaged, which is logged."""
    try:
        return read_hashed(path)
    except FileNotFoundError:
        return None
    except Damaged as error:  # a dying job's partial record must not stop the healing that reads it
        logger.warning("damaged record skipped: error=%s", error)
        return None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of progress and waits."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:  # the job has written no event yet
        return
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:  # the last line, if a kill cut it
            continue
        if isinstance(value, dict):
            yield value


def progress(record: JobRecord) -> dict[str, Any] | None:
    """Return a job's newest event: the step's name (`what`), `done`, `total`, and its figures; None without events."""
    return record.events[-1] if record.events else None


def seconds_left(record: JobRecord) -> float | None:
    """Return the seconds to the end of the current step, at its pace since this restart; None before two events."""
    last = progress(record)
    if last is None or not last.get("total"):
        return None
    step = (last.get("what"), last.get("restart"))
    first = next(event for event in record.events if (event.get("what"), event.get("restart")) == step)
    done = float(last["done"]) - float(first["done"])
    elapsed = (datetime.fromisoformat(last["at"]) - datetime.fromisoformat(first["at"])).total_seconds()
    return (float(last["total"]) - float(last["done"])) * elapsed / done if done > 0 else None


def waiting(record: JobRecord, restart: int, now: datetime) -> list[dict[str, Any]]:
    """Return the open waits of one start of a job, by name; `at` is the beginning of each."""
    open_waits: dict[str, dict[str, Any]] = {}
    for line in record.waits:
        if line.get("restart", 0) == restart:
            name = str(line["wait"])
            since = open_waits.get(name, line)["at"]
            open_waits[name] = {**line, "at": since}
            if line.get("why") is None:
                del open_waits[name]
    return [wait for _, wait in sorted(open_waits.items()) if datetime.fromisoformat(wait["until"]) >= now]


def progressed(record: JobRecord, restart: int, earlier: list[JobRecord]) -> bool:
    """True if a job got further in this restart than in any before, earlier attempts included. Steps are compared by
    name: a new name is progress once it has counted one."""
    best: dict[str, float] = {}
    for earlier_record in [*earlier, record]:
        for event in earlier_record.events:
            if earlier_record is not record or event.get("restart", 0) < restart:
                name = str(event.get("what"))
                best[name] = max(best.get(name, 0.0), float(event.get("done", 0)))
    return any(
        float(event.get("done", 0)) > best.get(str(event.get("what")), 0.0)
        for event in record.events
        if event.get("restart", 0) == restart
    )
