"""Run plays: what a collection has played, which lies in the run's own file and nowhere else.

    play_run(cell, run.trajectories, work, waves, size, write=handle.store.append)      # in the process that collects
    play_run(cell, run.trajectories, work, waves, size)                                 # in a helper

The one process that collects appends to the run; a helper reads along, so that it plays what the run does not have, and
leaves its own plays in the episode cache until they are taken over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from r2v.data.episode import Episode
from r2v.data.store import DoneKey
from r2v.llm.waves import Waves
from r2v.rollout.blocks import BlockPlayer
from r2v.rollout.cells import Cell
from r2v.rollout.episode_cache import EpisodeCache
from r2v.rollout.play_lines import line_hash, lines_from
from r2v.storage.artifact import Work
from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST
from r2v.storage.paths import EPISODES

Write = Callable[[Episode], None]
"""Appends an episode to a run."""


def play_run(cell: Cell, path: Path, work: Work, waves: Waves, size: int, write: Write | None = None) -> None:
    """Play, in blocks of this size, what neither the run's file nor a helper has. With `write` all of it is in the run
    when this returns, helpers' plays too; without, this is a helper. Raises StageFinished as a player does."""
    keys: dict[DoneKey, str] = {
        (spec.task.task_id, spec.seed, spec.perturbation_seed): key
        for key, spec in zip(cell.play_keys(), cell.specs, strict=True)
    }
    plays = RunPlays(path, keys, write)
    cache = EpisodeCache(work.root / EPISODES, work.folder.name, alone=True, home=plays)
    manifest = work.folder / ARTIFACT_MANIFEST
    BlockPlayer(waves, cache, size, finished=lambda: work.helping and manifest.exists()).fill([cell], cell.what)
    if write is None:
        return
    for key in keys.values():
        if key not in plays and (records := cache.read(key, cell.kinds)) is not None:
            plays.put(key, records)
    cache.forget()


class RunPlays:
    """The plays of a run's file, which may grow.

    keys: by what was to be played. write: appends an episode to the run; None where another process does.
    """

    def __init__(self, path: Path, keys: Mapping[DoneKey, str], write: Write | None = None) -> None:
        self.path, self.folder = path, path.parent
        self._keys, self._write = keys, write
        self._read_to = 0
        self._held = set[str]()

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def put(self, key: str, records: Sequence[Any]) -> bool:
        """Append what a play came to, where this process writes the run. No record: the question is still open, and
        nobody writes that down. False: it belongs into the cache."""
        if records and self._write is None:
            return False
        for episode in records:
            assert self._write is not None
            self._write(episode)
            self._held.add(key)
        return True

    def look(self) -> Iterator[tuple[str, list[list[Any]]]]:
        """Key -> where its episode lies, as `published.json` says it, of what was added since the last look. Lines that
        are none (torn, or damaged, which whoever writes the run sees to) are passed over."""
        for offset, line in lines_from(self.path, self._read_to) if self.path.exists() else ():
            if not line.endswith(b"\n"):
                return
            self._read_to = offset + len(line)
            if (key := self._key_of(line)) is not None:
                self._held.add(key)
                yield key, [[Episode.__name__, self.path.name, offset, line_hash(line)]]

    def _key_of(self, line: bytes) -> str | None:
        try:
            value = json.loads(line)
            about = value["metadata"]
            return self._keys.get((about["task_id"], about["seed"], value.get("perturbation_seed")))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
