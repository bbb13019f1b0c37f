"""Run handle: a run during collection, with its store leased by this process and its manifest kept up to date.

`done` is written only when every line is on disk and the count is the expected one. A run ended by an error is
`failed`, one ended early `partial`; one whose process was killed stays `running` on disk and is shown as `interrupted`,
since its store has no holder.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from r2v.data.episode import Episode
from r2v.data.manifest import RUN_MANIFEST, RunManifest, Status, write_manifest
from r2v.data.store import TrajectoryStore
from r2v.errors import InputError, Interrupted, R2VError, UsageError
from r2v.storage.artifact_manifest import Damaged
from r2v.storage.files import content_sha256
from r2v.storage.integrity import set_aside, verify_file
from r2v.storage.lease import holder

log = logging.getLogger(__name__)

UtcClock = Callable[[], datetime]


class RunHandle:
    """Run open for writing, made by `DataRegistry.begin_run`, which holds the store's lease."""

    def __init__(
        self,
        manifest: RunManifest,
        store: TrajectoryStore,
        *,
        held: ExitStack,
        now: UtcClock,
        changed: Callable[[], None],
    ) -> None:
        self.manifest = manifest
        self.store = store
        self._held = held
        self._now = now
        self._changed = changed
        self._begun = now()
        self._record(status="running", error=None, finished_at=None)

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.manifest.run_id

    @property
    def output_dir(self) -> Path:
        """Folder of the run."""
        return self.manifest.output_dir

    def finish(self, *, expected: int) -> RunManifest:
        """Sync, count and close the run: `done` with exactly `expected` episodes, else `partial`."""
        self._close("partial", expected=expected)
        return self.manifest

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.manifest.status != "running":
            return
        if error is None:
            self._close("partial")
            return
        stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
        with suppress(R2VError):  # the disk that failed the run may refuse the manifest too
            self._close("partial" if stopped else "failed", error=f"{type(error).__name__}: {error}")

    def _close(self, status: Status, *, error: str | None = None, expected: int | None = None) -> None:
        with self._held:
            self.store.sync()
            counted, now = figures(self.store.iter_episodes()), self._now()
            self._record(
                status="done" if counted["n_episodes"] == expected else status,
                error=error,
                finished_at=_iso(now),
                data_sha256=content_sha256(self.store.path),
                wall_time_seconds=self.manifest.wall_time_seconds + (now - self._begun).total_seconds(),
                **counted,
            )

    def _record(self, **changes: Any) -> None:
        self.manifest = replace(self.manifest, updated_at=_iso(self._now()), **changes)
        write_manifest(self.manifest)
        self._changed()


def verify_run(run: RunManifest) -> None:
    """Raise Damaged if a finished run's trajectories differ from the hash in its manifest."""
    verify_file(run.trajectories, str(run.data_sha256), RUN_MANIFEST)


def set_damage_aside(run: RunManifest) -> None:
    """Rename a finished run's damaged trajectories aside and log it, so that all episodes are played again."""
    try:
        if run.status == "done":
            verify_run(run)
    except Damaged as error:
        aside = set_aside(run.trajectories).name if run.trajectories.exists() else "nothing"
        log.warning("trajectories damaged, playing them again: run=%s moved_to=%s error=%s", run.run_id, aside, error)


def figures(episodes: Iterable[Episode]) -> dict[str, Any]:
    """Return counts and cost of a run's episodes as fields of its manifest."""
    total: dict[str, Any] = {"n_episodes": 0, "n_success": 0, "n_env_faults": 0, "total_cost_usd": 0.0}
    outcomes: Counter[str] = Counter()
    for episode in episodes:
        total["n_episodes"] += 1
        total["n_env_faults"] += episode.env_fault is not None
        total["n_success"] += episode.success and episode.env_fault is None
        total["total_cost_usd"] += episode.total_cost
        outcomes[episode.outcome] += episode.outcome != "played"
    return total | {"outcomes": dict(+outcomes)}


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


def with_live_status(run: RunManifest) -> RunManifest:
    """Return the manifest with current counts of an unfinished run, `interrupted` if its writer is dead."""
    if run.status != "running":
        return run
    store = TrajectoryStore(run.trajectories)
    status: Status = "interrupted" if holder(store.lease_path) is None else "running"
    try:
        return replace(run, status=status, **figures(store.iter_episodes(growing=True)))
    except InputError as error:
        log.warning("run not counted, using its recorded counts: run=%s error=%s", run.run_id, error)
        return replace(run, status=status)


def continued(run: RunManifest, fingerprint: str, config: dict[str, Any], force: bool) -> RunManifest:
    """Return the manifest for continuing a run. Raise UsageError for another fingerprint unless `force`."""
    if run.fingerprint == fingerprint:
        return run
    if not force:
        raise UsageError(
            f"run {run.run_id} was made with fingerprint {run.fingerprint}, this configuration "
            f"has {fingerprint}; use the run's own config, start a new run, or force it"
        )
    earlier = {"fingerprint": run.fingerprint, "config": run.config}
    return replace(run, fingerprint=fingerprint, config=config, superseded=(*run.superseded, earlier))
