"""Data registry: all data-collection runs with provenance and state.

    data/runs/<run_id>/run_manifest.json    source of truth of one run, written by the process that holds it
    data/registry.json                      index of all runs; `rebuild()` makes it again, byte for byte

Queries read the manifests, so a lost or old index does no harm; a damaged manifest is logged and skipped. A run
collected into another base folder is a link in `data/runs`, which also reserves its name. Changes are appended to a
journal, which is merged into the index once it has grown to a share of its size, and when the process ends: N runs cost
time in proportion to N, and a small index is up to date at once. A damaged index is set aside, logged and made again
from the manifests.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import platform
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from r2v.console import text_table
from r2v.constraints import NAME, shown
from r2v.data.episode import Episode
from r2v.data.manifest import (
    RUN_ID,
    RUN_MANIFEST,
    RUN_SCHEMA,
    RunManifest,
    read_manifest,
    read_record,
    run_prefix,
    time_stamp,
)
from r2v.data.merge import Keep, Source, merge, unique
from r2v.data.run import RunHandle, UtcClock, continued, set_damage_aside, with_live_status
from r2v.data.store import TrajectoryStore
from r2v.data.tools import Tools
from r2v.errors import EnvironmentFault, InputError, LeaseConflict, R2VError, UsageError, nearest
from r2v.storage.artifact_manifest import git_commit
from r2v.storage.files import remove_drafts, write_text, writing
from r2v.storage.lease import lease

_SHARE = 8
"""The journal is merged from a size of 1/_SHARE of the index."""
_SMALL = 1 << 16
"""Bytes of an index up to which each change rewrites it."""
_WAIT = 60.0
"""Seconds to wait for another process's lease of the index."""

Entries = dict[str, dict[str, Any]]
"""Run id -> its manifest as in the index."""


class RunIndex:
    """Index at `path`; `everything` makes all of its entries from the manifests."""

    def __init__(self, path: Path, everything: Callable[[], Entries]) -> None:
        self.path = path
        self.journal = path.with_name(f"{path.stem}.journal.jsonl")
        self._lease = path.with_suffix(".json.lease")
        self._everything = everything
        self._waits_for_exit = False

    def put(self, run_id: str, entry: Mapping[str, Any]) -> None:
        """Add a run's newly written manifest to the index. A disk error or a busy lease is logged, never raised: the
        index can be rebuilt."""
        try:
            with lease(self._lease, wait=_WAIT):
                self._append(run_id, entry)
                if self.journal.stat().st_size * _SHARE >= _size(self.path) or _size(self.path) < _SMALL:
                    self._compact()
                elif not self._waits_for_exit:
                    self._waits_for_exit = True
                    atexit.register(self.flush)
        except (LeaseConflict, EnvironmentFault, OSError) as error:
            log.warning("index not updated: file=%s remedy=r2v registry rebuild error=%s", self.path, error)

    def flush(self) -> None:
        """Merge the journal into the index; on an error leave it to the next call."""
        with suppress(OSError, R2VError):
            if self.journal.exists():
                with lease(self._lease, wait=_WAIT):
                    self._compact()

    def rebuild(self) -> None:
        """Write the index from the manifests: the same manifests give the same bytes."""
        with lease(self._lease, wait=_WAIT):
            if self.path.is_dir():
                _set_aside(self.path, "a folder")
            self._write(self._everything())
            self.journal.unlink(missing_ok=True)

    def _append(self, run_id: str, entry: Mapping[str, Any]) -> None:
        line = json.dumps({"run_id": run_id, "entry": entry}, ensure_ascii=False).encode() + b"\n"
        with writing(self.journal), self.journal.open("ab") as file:
            if file.tell() and not _ends_line(self.journal):
                line = b"\n" + line  # after the torn line of a killed process
            file.write(line)

    def _compact(self) -> None:
        entries = self._read()
        if entries is None:
            entries = self._everything()
        else:
            entries |= self._journalled()
        self._write(entries)
        self.journal.unlink(missing_ok=True)

    def _read(self) -> Entries | None:
        """Return the entries of the index, or None if it is missing or damaged."""
        try:
            record = json.loads(self.path.read_bytes())
            if record["schema_version"] != RUN_SCHEMA:
                raise ValueError(f"schema_version {record['schema_version']!r}")
            entries = {run["run_id"]: run for run in record["runs"]}
            if not all(
                isinstance(run_id, str) and isinstance(run["updated_at"], str) for run_id, run in entries.items()
            ):
                raise ValueError("a run without its id or time")
            return entries
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            _set_aside(self.path, f"{type(error).__name__}: {error}")
            return None

    def _journalled(self) -> Entries:
        """Return the last change of each run in the journal. A torn line is left to the next rebuild."""
        changes: Entries = {}
        for line in self.journal.read_bytes().splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                record = json.loads(line)
                if isinstance(record["run_id"], str) and isinstance(record["entry"]["updated_at"], str):
                    changes[record["run_id"]] = record["entry"]
        return changes

    def _write(self, runs: Entries) -> None:
        head = {
            "schema_version": RUN_SCHEMA,
            "updated_at": max((run["updated_at"] for run in runs.values()), default=None),
        }
        lines = ",\n".join(json.dumps(runs[run_id], ensure_ascii=False) for run_id in sorted(runs))
        remove_drafts(self.path)
        write_text(self.path, f'{json.dumps(head)[:-1]}, "runs": [\n{lines}\n]}}\n')


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _set_aside(path: Path, reason: str) -> None:
    """Rename a damaged index aside and log it."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.quarantine")
    path.rename(aside)
    reason = " ".join(reason.split())[:200]
    log.warning("index damaged, making it again: file=%s moved_to=%s reason=%s", path, aside.name, reason)


log = logging.getLogger(__name__)


class DataRegistry:
    """Registry of the runs below `root`. `now`: clock of run ids and manifests."""

    def __init__(self, root: Path | str = Path("data"), *, now: UtcClock = lambda: datetime.now(UTC)) -> None:
        self.root = Path(root)
        self.runs = self.root / "runs"
        self.index_path = self.root / "registry.json"
        self.now = now
        self._skipped: set[str] = set()
        self._runs_index = RunIndex(self.index_path, self._entries)

    def begin_run(
        self,
        *,
        benchmark: str,
        provider: str,
        model_name: str,
        fingerprint: str,
        config: dict[str, Any],
        base: Path | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        tools: Tools | None = None,
        run_id: str | None = None,
        force: bool = False,
    ) -> RunHandle:
        """Start a run in `base` (default: `<root>/runs`), or continue the one named `run_id`.

        Raise UsageError if the run has another fingerprint, unless `force` (then both are kept in the manifest), or
        `run_id` does not fit this benchmark and model; LeaseConflict while another process is collecting the run.
        """
        prefix = run_prefix(benchmark, provider, model_name)
        folder = self._find(run_id, base or self.runs) or self._new_folder(prefix, base or self.runs, run_id)
        store = TrajectoryStore(folder / "trajectories.jsonl")
        if (folder / RUN_MANIFEST).exists():
            set_damage_aside(read_manifest(folder))
        with ExitStack() as stack:
            stack.enter_context(store.exclusive())
            remove_drafts(folder / RUN_MANIFEST)
            if (folder / RUN_MANIFEST).exists():
                manifest = continued(_manifest_of(folder), fingerprint, config, force)
            else:
                manifest = RunManifest(
                    run_id=folder.name,
                    benchmark=benchmark,
                    provider=provider,
                    model_name=model_name,
                    output_dir=folder,
                    fingerprint=fingerprint,
                    config=config,
                    tags=tuple(tags),
                    notes=notes,
                    tools=tools,
                    started_at=self.now().isoformat(timespec="seconds"),
                    updated_at="",
                    host=socket.gethostname(),
                    git_commit=git_commit(),
                    python_version=platform.python_version(),
                )
            return RunHandle(
                manifest, store, held=stack.pop_all(), now=self.now, changed=partial(self._index, folder.name)
            )

    def get(self, run_id: str) -> RunManifest:
        """Return the current manifest of a run. Raise InputError with the nearest name if there is no such run."""
        if not NAME.allows(run_id) or not (self.runs / run_id / RUN_MANIFEST).exists():
            run_ids = [folder.name for folder in self._folders()]
            raise InputError(f"{self.runs}: no run {shown(run_id)}; {nearest(run_id, run_ids)}")
        return with_live_status(_manifest_of(self._folder(run_id)))

    def query(
        self,
        *,
        benchmark: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        status: str | None = None,
        tags: Iterable[str] = (),
    ) -> list[RunManifest]:
        """Return the runs that match all arguments that are not None and all `tags`, oldest first."""
        filters = {"benchmark": benchmark, "model_name": model, "provider": provider}
        runs = [
            run
            for run in self._manifests()
            if all(value in (None, getattr(run, name)) for name, value in filters.items())
            and set(tags) <= set(run.tags)
        ]
        runs = [run for run in map(with_live_status, runs) if status in (None, run.status)]
        return sorted(runs, key=lambda run: (run.started_at, run.run_id))

    def latest_run(self, benchmark: str, model: str | None = None) -> RunManifest:
        """Return the newest done run. Raise InputError if there is none."""
        done = self.query(benchmark=benchmark, model=model, status="done")
        if not done:
            subject = benchmark if model is None else f"{benchmark} by {model}"
            raise InputError(f"{self.runs}: no done run of {subject}; collect one or finish one by its --run-id")
        return done[-1]

    def iter_episodes(self, run_ids: Sequence[str], deduplicate: bool = True) -> Iterator[Episode]:
        """Yield the runs' episodes in the given order; of duplicates the first is kept."""
        sources = self._sources(run_ids, include_running=True)
        episodes = (e for s in sources for e in TrajectoryStore(s.path).iter_episodes(growing=s.growing))
        return unique(episodes) if deduplicate else episodes

    def merge_runs(
        self,
        run_ids: Sequence[str],
        output_path: Path | str,
        deduplicate: bool = True,
        *,
        keep: Keep = "first",
        include_running: bool = False,
    ) -> TrajectoryStore:
        """Write the runs' episodes to one file, and its `<name>.meta.json`; see `r2v.data.merge`.

        Raise InputError for an unknown run, and for one still running unless `include_running`.
        """
        sources = self._sources(run_ids, include_running=include_running)
        return merge(sources, Path(output_path), deduplicate=deduplicate, keep=keep)

    def summary(self) -> str:
        """Return a table of all runs, oldest first."""
        rows = [("run", "status", "episodes", "success", "list price $", "tags")]
        for run in self.query():
            rate = "-" if math.isnan(run.success_rate) else f"{run.success_rate:.1%}"
            rows.append(
                (run.run_id, run.status, str(run.n_episodes), rate, f"{run.total_cost_usd:.2f}", " ".join(run.tags))
            )
        return text_table(rows)

    def rebuild(self) -> None:
        """Write `registry.json` from the manifests, deterministically."""
        self._runs_index.rebuild()

    def _index(self, run_id: str) -> None:
        """Add a run's newly written manifest to the index."""
        self._runs_index.put(run_id, self._entry(run_id))

    def _entries(self) -> dict[str, dict[str, Any]]:
        return {run.run_id: self._entry(run.run_id) for run in self._manifests()}

    def _entry(self, run_id: str) -> dict[str, Any]:
        """Return a manifest's entry in the index: without config and tools, its folder relative to `root`."""
        path = self.runs / run_id
        target = path.readlink() if path.is_symlink() else Path(run_id)
        record = {**read_record(path), "output_dir": os.path.normpath(Path("runs") / target)}
        del record["config"], record["tools"]
        return record

    def _manifests(self) -> Iterator[RunManifest]:
        """Yield the manifests of all runs; damaged ones are logged, once each, and skipped."""
        for folder in self._folders():
            try:
                manifest = _manifest_of(folder)
            except InputError as error:
                if str(error) not in self._skipped:
                    self._skipped.add(str(error))
                    log.warning("run skipped: error=%s", error)
                continue
            yield manifest

    def _folders(self) -> list[Path]:
        return [self._folder(path.parent.name) for path in sorted(self.runs.glob(f"*/{RUN_MANIFEST}"))]

    def _folder(self, run_id: str) -> Path:
        """Return the real folder of a run, relative to `root` as the user spelled it."""
        path = self.runs / run_id
        return Path(os.path.normpath(self.runs / path.readlink())) if path.is_symlink() else path

    def _find(self, run_id: str | None, base: Path) -> Path | None:
        """Return the folder of an existing run; None without a run of this id. A run that a user copied into `base` is
        linked into the registry's folder of runs first."""
        if run_id is None or not NAME.allows(run_id):
            return None  # a path could lead to a foreign folder
        if not (self.runs / run_id).exists() and (base / run_id / RUN_MANIFEST).exists():
            self._link(base / run_id)
        if not (self.runs / run_id).exists():
            return None
        folder = self._folder(run_id)
        if not (folder / RUN_MANIFEST).exists() and not _is_reserved(folder):
            raise UsageError(
                f"run id {run_id}: {folder} holds no {RUN_MANIFEST}, so it is no run and nothing is written"
            )
        return folder

    def _link(self, folder: Path) -> Path:
        """Link a run outside `<root>/runs` into it. Raise FileExistsError if the name is taken."""
        target = folder.resolve()
        inside = target.is_relative_to(self.root.resolve())
        link = self.runs / folder.name
        link.symlink_to(os.path.relpath(target, self.runs.resolve()) if inside else target)
        return link

    def _new_folder(self, prefix: str, base: Path, run_id: str | None) -> Path:
        """Make the folder of a new run under a unique name."""
        if run_id is not None and not (run_id.startswith(prefix) and RUN_ID.fullmatch(run_id)):
            raise UsageError(
                f"run id {shown(run_id)}: no such run in {self.runs}, and a new one of this benchmark "
                f"and model is named {prefix}YYYYMMDDTHHMMSS"
            )
        first = run_id or prefix + time_stamp(self.now())
        with writing(self.runs):
            self.runs.mkdir(parents=True, exist_ok=True)
            for name in (first if n == 1 else f"{first}-{n}" for n in count(1)):
                try:
                    return self._reserve(base, name)
                except FileExistsError:
                    if run_id is not None:
                        raise LeaseConflict(f"run {run_id} is being started by another process; wait for it") from None
        raise AssertionError

    def _reserve(self, base: Path, name: str) -> Path:
        folder = base / name
        if base.resolve() == self.runs.resolve():
            folder.mkdir()
            return folder
        link = self._link(folder)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            link.unlink()
            raise
        return folder

    def _sources(self, run_ids: Sequence[str], *, include_running: bool) -> list[Source]:
        runs = [self.get(run_id) for run_id in dict.fromkeys(run_ids)]
        running = [run.run_id for run in runs if run.status == "running"]
        if running and not include_running:
            raise InputError(
                f"run {running[0]} is still running; wait for it, or ask for its finished "
                "episodes with include_running=True"
            )
        return [
            Source(run_id=r.run_id, path=r.trajectories, growing=r.status in ("running", "interrupted")) for r in runs
        ]


def _is_reserved(folder: Path) -> bool:
    """True if a process was killed between making a run's folder and writing the manifest: the folder has the name of a
    run and no episodes."""
    trajectories = folder / "trajectories.jsonl"
    empty = not trajectories.exists() or (trajectories.is_file() and trajectories.stat().st_size == 0)
    return folder.is_dir() and RUN_ID.fullmatch(folder.name) is not None and empty


def _manifest_of(folder: Path) -> RunManifest:
    """Return the manifest of the run in `folder`. Raise InputError if it names another run."""
    manifest = read_manifest(folder)
    if manifest.run_id != folder.name:
        raise InputError(f"{folder / RUN_MANIFEST}: is of the run {manifest.run_id!r}; restore it")
    return manifest
