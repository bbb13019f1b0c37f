"""Checkpoints of a training between two phases, to resume with the same bits.

    checkpoint-<n>/state.pt     weights of each role and of the target network, optimizers, iteration and phase, inputs
                                of that phase (episodes, training batches), versions, length of metrics.jsonl; it is
                                streamed, without a second copy in memory
    checkpoint-<n>/part-*.pt    if FSDP shards the language models: each rank's part of all weights and optimizers, in
                                place of state.pt's (`r2v.hrl.parallel.sharded_tensors`)
    checkpoint-<n>/of.json      its configuration, seed and placement
    checkpoint-<n>/at.json      iteration, phase, cursor of the replay buffer
    checkpoint-<n>/sha256.json  hashes of these files and of the required segments of the replay buffer
    checkpoint-latest           link to the newest whole one, written last
    replay/                     segments of the replay buffer; a checkpoint's cursor is its number of rows

States of random generators and learning rates are not needed: every draw is keyed, and rates are a function of the
iteration. A folder is written under a temporary name, synced and renamed, so a kill leaves the previous checkpoint. The
last few are kept, and a damaged one is skipped for the one before it (`r2v.storage.checkpoint`). All ranks read, and
their number may change.
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
    """Write checkpoint-`number` as the latest, and remove all but the last few. `segments`: required files of the
    replay buffer. `begun`: the ranks have written their parts. Raises EnvironmentFault if it cannot be written; the
    previous one then stays the latest."""
    target, draft = folder / f"checkpoint-{number}", _draft(folder, number)
    with writing(target):
        if not begun:
            begin(folder, number)
        with checkpoint.saving(target), replacing(draft / STATE_FILE) as file:
            torch.save(dict(state), file)
        write_json(draft / IDENTITY_FILE, dict(identity))
        write_json(draft / POSITION_FILE, dict(position))
        checkpoint.seal(draft, segments)
        remove_own(target, CHECKPOINT_MARKER)
        draft.rename(target)
        checkpoint.point(folder, target)
    checkpoint.forget(folder, number, later=True)


def begin(folder: Path, number: int) -> None:
    """Create an empty folder for a new checkpoint. Raises EnvironmentFault if it cannot be written."""
    draft = _draft(folder, number)
    with writing(draft):
        make_own(draft, _DRAFT_MARKER, anew=True)


def write_part(folder: Path, number: int, part: Mapping[str, Any]) -> None:
    """Write this rank's part of a begun checkpoint. Raises EnvironmentFault if it cannot be written."""
    path = _draft(folder, number) / _part_file(distributed.rank(), distributed.ranks())
    with writing(path), checkpoint.saving(path), replacing(path) as file:
        torch.save(dict(part), file)


def _draft(folder: Path, number: int) -> Path:
    return folder / f"tmp-checkpoint-{number}"


def _part_file(rank: int, ranks: int) -> str:
    return f"part-{rank + 1:05}-of-{ranks:05}.pt"


def oldest(folder: Path, field: str) -> int:
    """Return the least value of a position's field over all checkpoints; 0 if one of them is damaged."""
    return min(_position(folder / f"checkpoint-{number}", field) for number in numbers(folder))


def _position(folder: Path, field: str) -> int:
    try:
        return int(json.loads((folder / POSITION_FILE).read_text())[field])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def read(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the newest whole state, and log the skipped ones; None without a checkpoint. Raises InputError if it is of
    another configuration, seed or placement, or not written by R2V. All ranks must call."""
    if distributed.rank() == 0:
        checkpoint.newest_whole(folder, "hierarchical")
    distributed.wait_for_all()
    latest = folder / LATEST
    if not latest.exists():
        return None
    target = latest.resolve()
    with checkpoint.resuming(target):
        _check(target, json.loads((target / IDENTITY_FILE).read_text()), json.loads(json.dumps(identity)))
        state: dict[str, Any] = torch.load(target / STATE_FILE, weights_only=True)
        parts = [torch.load(path, weights_only=True, mmap=True) for path in sorted(target.glob("part-*.pt"))]
    return {**state, **joined(parts)} if parts else state


def _check(folder: Path, recorded: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    ours, theirs = dict(_flat(requested)), dict(_flat(recorded))
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            raise InputError(
                f"{folder}: made with {key}={theirs.get(key)}, asked for is {ours.get(key)}; go on as it "
                "was made, or train in another folder"
            )


def _flat(section: Any, stem: str = "") -> list[tuple[str, Any]]:
    if not isinstance(section, Mapping):
        return [(stem, section)]
    return [pair for name, value in section.items() for pair in _flat(value, f"{stem}.{name}" if stem else str(name))]
