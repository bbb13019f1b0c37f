"""Replay buffer: a ring of the critic's transitions, the same on every rank.

A batch is sampled for all ranks from one keyed stream of indices, of which each rank takes its slice, so batches do not
depend on the number of ranks. Rows have a fixed width (token ids are cut to the critic's limit), so storing and
sampling are a copy and an index, without a loop over items. On disk the ring is a series of segments: a save only
writes the rows since the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from r2v.errors import EmptyResult, InputError, UsageError
from r2v.randomness import Key, seed_of
from r2v.storage.files import replacing

_DIGITS = 12


def usable(done: Tensor, version: Tensor, current: int, max_age: int = 8) -> Tensor:
    """Return a bool mask (N,) of transitions that may still be trained on: terminal ones always, because their reward
    does not change; others while the guidance that led to their next observation is at most `max_age` updates older
    than the `current` one."""
    return done | (version >= current - max_age)


class ReplayBuffer:
    """Ring of `capacity` rows. `columns`: an example row, a tensor per name, for shapes and dtypes."""

    def __init__(self, capacity: int, columns: Mapping[str, Tensor]) -> None:
        if capacity < 1:
            raise UsageError(f"hierarchical.replay.capacity={capacity}: must be at least 1; 20000 is a start")
        self.capacity = capacity
        self.columns = {name: torch.zeros(capacity, *row.shape, dtype=row.dtype) for name, row in columns.items()}
        self.inserted = 0
        """Number of rows ever added: the ring's cursor, which a checkpoint records."""
        self._saved = 0

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Store n rows, (n, ...) per column, in place of the oldest. All ranks add the same. Raises UsageError for
        other columns."""
        count = self._row_count(rows)
        stored = min(count, self.capacity)
        slots = torch.arange(self.inserted + count - stored, self.inserted + count) % self.capacity
        for name, column in self.columns.items():
            column[slots] = rows[name][count - stored :].to("cpu", column.dtype)
        self.inserted += count

    def _row_count(self, rows: Mapping[str, Tensor]) -> int:
        """Return the number of rows. Raises UsageError for other columns than the ring's."""
        expected = {name: tuple(column.shape[1:]) for name, column in self.columns.items()}
        given = {name: tuple(row.shape[1:]) for name, row in rows.items()}
        counts = {len(row) for row in rows.values()}
        if expected != given or len(counts) != 1:
            raise UsageError(
                f"replay: rows of {given} ({sorted(counts)} of them) for columns {expected}; give every "
                "column, as many rows of each"
            )
        return counts.pop()

    def sample(
        self, size: int, *key: str | int, among: Tensor | None = None, rank: int = 0, ranks: int = 1
    ) -> dict[str, Tensor]:
        """Return this rank's slice of a batch of `size` rows, sampled uniformly with replacement under `key` from the
        rows that `among` (len,) marks, or from all. Raises EmptyResult without such rows."""
        rows = torch.arange(len(self)) if among is None else among.nonzero().squeeze(-1)
        if not len(rows):
            raise EmptyResult(
                f"replay: none of its {len(self)} transitions is usable; collect first, or raise "
                "hierarchical.replay.max_age"
            )
        chosen = rows[_indices(len(rows), size, key)][size * rank // ranks : size * (rank + 1) // ranks]
        return {name: column[chosen] for name, column in self.columns.items()}

    def save(self, folder: Path) -> int:
        """Write the rows since the last save as one segment and return the cursor for `load`. Later segments of an
        earlier run, which went further, are removed. Only one rank may save."""
        for path, (begin, _) in _segments(folder).items():
            if begin >= self._saved:
                path.unlink()
        first = max(self._saved, self.inserted - self.capacity)
        if self.inserted > first:
            slots = torch.arange(first, self.inserted) % self.capacity
            _write(folder / _name(first, self.inserted), {n: c[slots] for n, c in self.columns.items()})
        self._saved = self.inserted
        return self.inserted

    def load(self, folder: Path, cursor: int) -> None:
        """Restore the ring at `cursor`. Raises InputError if a required segment is missing or of another ring."""
        self.inserted = oldest = max(0, cursor - self.capacity)
        for path, (first, last) in _segments(folder).items():
            if first < cursor and last > oldest:
                if not first <= self.inserted < last <= cursor:
                    break
                self._append(path, self.inserted - first)
        if self.inserted != cursor:
            raise InputError(
                f"{folder}: transitions {self.inserted} to {cursor} are missing; take a checkpoint whose "
                "replay is whole, or start anew"
            )
        self._saved = cursor

    def _append(self, path: Path, skipped: int) -> None:
        from safetensors.torch import load_file

        try:
            rows = load_file(path)
            self.add({name: rows[name][skipped:] for name in rows})
        except (OSError, SafetensorError, UsageError) as error:
            raise InputError(
                f"{path}: not a segment of this replay ({' '.join(str(error).split())}); take another "
                "checkpoint, or start anew"
            ) from error

    def segments(self, folder: Path) -> list[Path]:
        """Return the files that `load` requires for the last save."""
        return [path for path, (_, last) in _segments(folder).items() if last > self._saved - self.capacity]

    def forget(self, folder: Path, cursor: int) -> None:
        """Remove the segments that no checkpoint from `cursor` on requires."""
        for path, (_, last) in _segments(folder).items():
            if last <= cursor - self.capacity:
                path.unlink()


def _indices(count: int, size: int, key: Key) -> Tensor:
    return torch.randint(count, (size,), generator=torch.Generator().manual_seed(seed_of(*key)))


def _name(first: int, last: int) -> str:
    return f"replay-{first:0{_DIGITS}}-{last:0{_DIGITS}}.safetensors"


def _segments(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return segment -> (first, last) row, in order."""
    spans = {path: path.stem.split("-")[1:] for path in sorted(folder.glob("replay-*-*.safetensors"))}
    return {path: (int(first), int(last)) for path, (first, last) in spans.items()}


def _write(path: Path, rows: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save

    with replacing(path) as file:
        file.write(save({name: rows[name].contiguous() for name in sorted(rows)}))
