"""The record of a Slurm job: what it wrote about itself, in a folder that only it writes to.

found = job_record.record(root, "desk_noisy", "104")      # start, error, exit, events; None for what is not there
progressed(found, restart=1, earlier=[])                  # did this start get further than those before?
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
"""What a job writes of the arrays that it has submitted."""


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The files that a Slurm job wrote about itself; None and [] for those that are not there (yet, or never)."""

    folder: Path
    start: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    waits: list[dict[str, Any]] = field(default_factory=list)
    """The waits, the newest last: at, restart, wait, why (None: it is over), until."""
    helpers: tuple[str, ...] = ()
    """Ids of the arrays of helpers that it submitted."""

    @property
    def restart(self) -> int:
        """The number of its last start, from 0 on."""
        return int((self.start or {}).get("restart", 0))

    @property
    def last_exit(self) -> dict[str, Any] | None:
        """The end of its last start; None for that of an earlier one, from which it was put back into the queue."""
        return self.exit if self.exit and int(self.exit.get("restart", 0)) >= self.restart else None

    @property
    def seconds(self) -> float | None:
        """Seconds from its last start to its end, or to now; None where it never began."""
        if self.start is None:
            return None
        ended = datetime.fromisoformat(self.exit["at"]) if self.exit else datetime.now(UTC)
        return max(0.0, (ended - datetime.fromisoformat(self.start["at"])).total_seconds())


def record_folder(root: Path, name: str, job_id: str) -> Path:
    """The folder in which a Slurm job writes about itself."""
    return folder(root, name) / "jobs" / job_id


def record(root: Path, name: str, job_id: str) -> JobRecord:
    """The record that a Slurm job wrote about itself."""
    return record_at(record_folder(root, name, job_id))


def record_at(files: Path) -> JobRecord:
    """The record of the job that wrote into this folder."""
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
    """A file's JSON object; None where there is none, with a line where it is damaged."""
    try:
        return read_hashed(path)
    except FileNotFoundError:
        return None
    except Damaged as error:
        logger.warning("%s; skipped", error)
        return None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines on progress and on waits, a last one cut by a kill left out."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def progress(record: JobRecord) -> dict[str, Any] | None:
    """The newest event of a job: what it does, how much is done of how much, its figures."""
    return record.events[-1] if record.events else None


def seconds_left(record: JobRecord) -> float | None:
    """Seconds to the end of what a job does now, at its pace since this restart began with it; None until two
    events tell a pace."""
    last = progress(record)
    if last is None or not last.get("total"):
        return None
    step = (last.get("what"), last.get("restart"))
    first = next(event for event in record.events if (event.get("what"), event.get("restart")) == step)
    done = float(last["done"]) - float(first["done"])
    elapsed = (datetime.fromisoformat(last["at"]) - datetime.fromisoformat(first["at"])).total_seconds()
    return (float(last["total"]) - float(last["done"])) * elapsed / done if done > 0 else None


def waiting(record: JobRecord, restart: int, now: datetime) -> list[dict[str, Any]]:
    """The open waits of a start of a job, by name; `at` says since when."""
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
    """True if a job got further in this restart than in any before it, its earlier attempts included. Steps are
    compared with steps of the same name: a name not seen before is progress, once it has counted one."""
    best: dict[str, float] = {}
    for known in [*earlier, record]:
        for event in known.events:
            if known is not record or event.get("restart", 0) < restart:
                name = str(event.get("what"))
                best[name] = max(best.get(name, 0.0), float(event.get("done", 0)))
    return any(
        float(event.get("done", 0)) > best.get(str(event.get("what")), 0.0)
        for event in record.events
        if event.get("restart", 0) == restart
    )
