"""Checkpoints of a training between two phases: enough to resume with the same bits.

    checkpoint-<n>/state.pt     weights of each role and of the target network, optimizers, iteration and phase, what
                                that phase needs (episodes, training batches), versions, length of metrics.jsonl; it is
                                streamed: no second copy of it is ever in memory
    checkpoint-<n>/part-*.pt    where FSDP shards the language models: each rank's part of all weights and optimizers,
                                in place of state.pt's (`r2v.hrl.parallel.sharded_tensors`)
    checkpoint-<n>/of.json      the configuration, seed and placement it was made with
    checkpoint-<n>/at.json      iteration, phase, cursor of the replay buffer
    checkpoint-<n>/sha256.json  hashes of these and of the segments of the replay buffer that it needs
    checkpoint-latest           a link to the newest whole one, made last
    replay/                     segments of the replay buffer; a checkpoint's cursor says how many rows are its own

There are no states of random generators: every draw is looked up under a key. Nor of learning rates: an iteration's
number says them.
A folder is written beside its place, synced and renamed, so a kill leaves the checkpoint before it; the last few stay,
and one that is damaged is passed over for the one before it (`r2v.storage.checkpoint`). All ranks read, and their
number may change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from r2v import distributed
from r2v.errors import InputError
from r2v.hrl.parallel.sharded_tensors import joined
from r2v.storage import checkpoint
from r2v.storage.checkpoint import CHECKPOINT_MARKER, LATEST, numbers
from r2v.storage.files import replacing, write_json, writing
from r2v.storage.removal import ATTEMPT_MARKER, Marker, make_own, remove_own

_DRAFT_MARKER = Marker(kind="draft of a checkpoint", within=ATTEMPT_MARKER)
STATE_FILE, IDENTITY_FILE, POSITION_FILE = "state.pt", "of.json", "at.json"


def write(
    folder: Path,
    number: int,
    identity: Mapping[str, Any],
    position: Mapping[str, Any],
    state: Mapping[str, Any],
    segments: Iterable[Path] = (),
    *,
    begun: bool = False,
) -> None:
    """Make checkpoint-`number` the latest, and remove all but the last few. `segments` are the files of the replay
    buffer that it needs; `begun`: the ranks' parts are there. Raises EnvironmentFault where the disk refuses; what was
    the latest then still is."""
    place, draft = folder / f"checkpoint-{number}", _draft(folder, number)
    with writing(place):
        if not begun:
            begin(folder, number)
        with checkpoint.saving(place), replacing(draft / STATE_FILE) as file:
            torch.save(dict(state), file)
        write_json(draft / IDENTITY_FILE, dict(identity))
        write_json(draft / POSITION_FILE, dict(position))
        checkpoint.seal(draft, segments)
        remove_own(place, CHECKPOINT_MARKER)
        draft.rename(place)
        checkpoint.point(folder, place)
    checkpoint.forget(folder, number, later=True)


def begin(folder: Path, number: int) -> None:
    """An empty folder for a checkpoint that is not there yet."""
    draft = _draft(folder, number)
    with writing(draft):
        make_own(draft, _DRAFT_MARKER, anew=True)


def write_part(folder: Path, number: int, part: Mapping[str, Any]) -> None:
    """This rank's part of a checkpoint that was begun. Raises EnvironmentFault where the disk refuses."""
    path = _draft(folder, number) / _part_file(distributed.rank(), distributed.ranks())
    with writing(path), checkpoint.saving(path), replacing(path) as file:
        torch.save(dict(part), file)


def _draft(folder: Path, number: int) -> Path:
    return folder / f"tmp-checkpoint-{number}"


def _part_file(rank: int, ranks: int) -> str:
    return f"part-{rank + 1:05}-of-{ranks:05}.pt"


def oldest(folder: Path, what: str) -> int:
    """The least value of a position's number, over the checkpoints that are there; 0 where one of them is damaged."""
    return min(_position(folder / f"checkpoint-{number}", what) for number in numbers(folder))


def _position(place: Path, what: str) -> int:
    try:
        return int(json.loads((place / POSITION_FILE).read_text())[what])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def read(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The newest whole state, a line naming what was passed over; None where there is none. Raises InputError where it
    is of another configuration, seed or placement, or was not written by a training of ours. All ranks must ask."""
    if distributed.rank() == 0:
        checkpoint.newest_whole(folder, "hierarchical")
    distributed.wait_for_all()
    latest = folder / LATEST
    if not latest.exists():
        return None
    place = latest.resolve()
    with checkpoint.resuming(place):
        _check(place, json.loads((place / IDENTITY_FILE).read_text()), json.loads(json.dumps(identity)))
        state: dict[str, Any] = torch.load(place / STATE_FILE, weights_only=True)
        parts = [torch.load(path, weights_only=True, mmap=True) for path in sorted(place.glob("part-*.pt"))]
    return {**state, **joined(parts)} if parts else state


def _check(place: Path, made_with: Mapping[str, Any], asked_for: Mapping[str, Any]) -> None:
    ours, theirs = dict(_flat(asked_for)), dict(_flat(made_with))
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            raise InputError(
                f"{place}: made with {key}={theirs.get(key)}, asked for is {ours.get(key)}; go on as it "
                "was made, or train in another folder"
            )


def _flat(section: Any, stem: str = "") -> list[tuple[str, Any]]:
    if not isinstance(section, Mapping):
        return [(stem, section)]
    return [pair for name, value in section.items() for pair in _flat(value, f"{stem}.{name}" if stem else str(name))]
