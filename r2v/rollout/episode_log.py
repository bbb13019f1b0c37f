"""Episode log: an episode cache backed by a run's own `trajectories.jsonl`.

    play_into_log(cell, run.trajectories, work, waves, size, write=handle.store.append)     # the collecting process
    play_into_log(cell, run.trajectories, work, waves, size)                                # a helper

One process collects and appends to the run. Helpers read the run to find its missing episodes, and put theirs into the
episode cache, from which the collecting process moves them into the run. A kill between the move and the removal of the
cached plays leaves these plays twice; the next attempt removes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from r2v.data.episode import Episode
from r2v.data.store import DoneKey
from r2v.llm.waves import Waves
from r2v.rollout.episode_cache import EpisodeCache, RecordLines, line_hash, lines_from
from r2v.rollout.work_queue import BlockPlayer, Cell
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST
from r2v.storage.paths import EPISODES

Write = Callable[[Episode], None]
"""Appends an episode to a run."""


def play_into_log(cell: Cell, path: Path, work: Work, waves: Waves, size: int, write: Write | None = None) -> None:
    """Play, in blocks of this size, the episodes that neither the run's file nor a helper's cache has.

    With `write`, the run holds all episodes on return, helpers' included; without it, this process is a helper. Raises
    StageFinished in a helper whose stage is finished, and EnvironmentFault where the disk refuses.
    """
    keys: dict[DoneKey, str] = {
        (spec.task.task_id, spec.seed, spec.perturbation_seed): key
        for key, spec in zip(cell.play_keys(), cell.specs, strict=True)
    }
    log = EpisodeLog(work.root / EPISODES, work.folder.name, path, keys, write)
    manifest = work.folder / ARTIFACT_MANIFEST
    BlockPlayer(waves, log, size, finished=lambda: work.helping and manifest.exists()).fill([cell], cell.what)
    if write is None:
        return
    for key in keys.values():  # helpers' plays are only in the cache so far
        if key not in log.logged and (records := log.read(key, cell.kinds)) is not None:
            log.append(key, records)
    log.forget()


class EpisodeLog(EpisodeCache):
    """An episode cache backed by the run's trajectories.jsonl, which may grow.

    path: the run's file. keys: task, seed and perturbation seed -> key of each play. write: appends an episode to the
    run; None where another process does. logged: the keys of the plays that are in the run.
    """

    def __init__(
        self, store: Path, own: str, path: Path, keys: Mapping[DoneKey, str], write: Write | None = None
    ) -> None:
        super().__init__(store, own, alone=True)  # a collection never reuses the plays of other attempts
        self.path, self.logged = path, set[str]()
        self._keys, self._write = keys, write
        self._log_read_to = 0

    def add(self, block: str, key: str, records: Sequence[Any]) -> None:
        """Append a play to the run where this process writes it, and to the cache otherwise. A play without a record
        waits for an open request, and is written nowhere. Raises EnvironmentFault where the disk refuses."""
        if records and self._write is None:
            super().add(block, key, records)
        else:
            self.append(key, records)

    def append(self, key: str, records: Sequence[Any]) -> None:
        """Append the episodes of a play to the run."""
        for episode in records:
            assert self._write is not None
            self._write(episode)
            self.logged.add(key)

    def refresh(self) -> None:
        """Read what was added to the cache and to the run since the last read."""
        super().refresh()
        if self._places is not None:
            self._set_stored(self.path.parent, self.added())

    def added(self) -> Iterator[tuple[str, RecordLines]]:
        """Yield (key, its episode's line) of each play that was added to the run since the last call. A torn or
        damaged line is skipped; the process that writes the run repairs it."""
        for offset, line in lines_from(self.path, self._log_read_to) if self.path.exists() else ():
            if not line.endswith(b"\n"):  # still being written: read it at the next call
                return
            self._log_read_to = offset + len(line)
            if (key := self._key_of(line)) is not None:
                self.logged.add(key)
                yield key, [[Episode.__name__, self.path.name, offset, line_hash(line)]]

    def _read_all(self) -> None:
        super()._read_all()
        self._set_stored(self.path.parent, self.added())

    def _key_of(self, line: bytes) -> str | None:
        try:
            value = json.loads(line)
            about = value["metadata"]
            return self._keys.get((about["task_id"], about["seed"], value.get("perturbation_seed")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # damaged: counts as missing
            return None
