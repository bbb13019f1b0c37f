"""The replay buffer: a ring of the critic's transitions, the same on every rank.

A batch is sampled for all ranks from one stream of indices, named by a key, of which each rank takes its slice: their
number changes no batch. Rows have a fixed width (token ids are cut to what the critic reads), so storing and sampling
are a copy and an index, without a loop over items. On disk the ring is a series of segments: a save writes what came
since the last one and rewrites nothing.
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
    """Transitions (N,) that may still be trained on, bool: terminal ones always, for their reward does not change;
    others while the guidance that led to their next observation is at most `max_age` updates older than the `current`
    one, for newer guidance leads elsewhere."""
    return done | (version >= current - max_age)


class ReplayBuffer:
    """A ring of `capacity` rows; `columns` are an example row, a tensor per name, which gives shapes and dtypes."""

    def __init__(self, capacity: int, columns: Mapping[str, Tensor]) -> None:
        if capacity < 1:
            raise UsageError(f"hierarchical.replay.capacity={capacity}: must be at least 1; 20000 is a start")
        self.capacity = capacity
        self.columns = {name: torch.zeros(capacity, *row.shape, dtype=row.dtype) for name, row in columns.items()}
        self.inserted = 0
        """Rows that were ever added: the ring's cursor, which a checkpoint keeps."""
        self._saved = 0

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Store n rows, (n, ...) per column, the oldest making room. All ranks add the same."""
        count = self._row_count(rows)
        kept = min(count, self.capacity)
        places = torch.arange(self.inserted + count - kept, self.inserted + count) % self.capacity
        for name, column in self.columns.items():
            column[places] = rows[name][count - kept :].to("cpu", column.dtype)
        self.inserted += count

    def _row_count(self, rows: Mapping[str, Tensor]) -> int:
        """Return the number of these rows. Raises UsageError where their columns are not this ring's."""
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
        """This rank's slice of a batch of `size` rows, sampled uniformly with replacement for `key` from the rows that
        `among` (len,) marks, or from all. Raises EmptyResult where there are none."""
        places = torch.arange(len(self)) if among is None else among.nonzero().squeeze(-1)
        if not len(places):
            raise EmptyResult(
                f"replay: none of its {len(self)} transitions is usable; collect first, or raise "
                "hierarchical.replay.max_age"
            )
        chosen = places[_indices(len(places), size, key)][size * rank // ranks : size * (rank + 1) // ranks]
        return {name: column[chosen] for name, column in self.columns.items()}

    def save(self, folder: Path) -> int:
        """Write the rows added since the last save as one segment; returns the cursor, which `load` takes. Segments
        that a run wrote which had come further than this one are removed. One rank saves."""
        for path, (begin, _) in _segments(folder).items():
            if begin >= self._saved:
                path.unlink()
        first = max(self._saved, self.inserted - self.capacity)
        if self.inserted > first:
            places = torch.arange(first, self.inserted) % self.capacity
            _write(folder / _name(first, self.inserted), {n: c[places] for n, c in self.columns.items()})
        self._saved = self.inserted
        return self.inserted

    def load(self, folder: Path, cursor: int) -> None:
        """Restore the ring as it was saved at `cursor`. Raises InputError where a segment that is needed is
        missing or of another ring."""
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
        """The files that `load` needs for what was saved last."""
        return [path for path, (_, last) in _segments(folder).items() if last > self._saved - self.capacity]

    def forget(self, folder: Path, cursor: int) -> None:
        """Remove the segments that no checkpoint from `cursor` on needs."""
        for path, (_, last) in _segments(folder).items():
            if last <= cursor - self.capacity:
                path.unlink()


def _indices(count: int, size: int, key: Key) -> Tensor:
    return torch.randint(count, (size,), generator=torch.Generator().manual_seed(seed_of(*key)))


def _name(first: int, last: int) -> str:
    return f"replay-{first:0{_DIGITS}}-{last:0{_DIGITS}}.safetensors"


def _segments(folder: Path) -> dict[Path, tuple[int, int]]:
    """Segments with the rows they hold, in order."""
    spans = {path: path.stem.split("-")[1:] for path in sorted(folder.glob("replay-*-*.safetensors"))}
    return {path: (int(first), int(last)) for path, (first, last) in spans.items()}


def _write(path: Path, rows: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save

    with replacing(path) as file:
        file.write(save({name: rows[name].contiguous() for name in sorted(rows)}))
