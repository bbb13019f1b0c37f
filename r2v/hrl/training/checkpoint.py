"""Checkpoints of a training between two phases: enough to resume with the same bits.

    checkpoint-<n>/state.pt     weights of each role and of the target network, optimizers, iteration and phase, what
    that
                                phase needs (episodes, training batches), versions, length of metrics.jsonl
    checkpoint-<n>/of.json      the configuration, seed and placement it was made with
    checkpoint-<n>/at.json      iteration, phase, cursor of the replay buffer
    checkpoint-latest           a link to the newest whole one, made last
    replay/                     segments of the replay buffer; a checkpoint's cursor says how many rows are its own

There are no states of random generators: every draw is looked up under a key. Nor of learning rates: they are constant.
A folder is written beside its place, synced and renamed, so a kill leaves the checkpoint before it; the last `KEPT`
stay. One rank writes, all read, and their number may change.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from r2v.config.models import FORMER_MODELS
from r2v.errors import InputError
from r2v.policy.fit import LATEST
from r2v.storage.files import replacing, sync_folder, write_json, writing

STATE_FILE, IDENTITY_FILE, POSITION_FILE = "state.pt", "of.json", "at.json"
KEPT = 2


def write(
    folder: Path, number: int, identity: Mapping[str, Any], position: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    """Make checkpoint-`number` the latest, and remove all but the last few. Raises EnvironmentFault where the disk
    refuses; what was the latest then still is."""
    place = folder / f"checkpoint-{number}"
    draft = folder / f"tmp-{place.name}"
    with writing(place):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        with replacing(draft / STATE_FILE) as file:
            file.write(buffer.getbuffer())
        write_json(draft / IDENTITY_FILE, dict(identity))
        write_json(draft / POSITION_FILE, dict(position))
        shutil.rmtree(place, ignore_errors=True)
        draft.rename(place)
        _point(folder, place)
    _forget(folder, number)


def _point(folder: Path, place: Path) -> None:
    sync_folder(folder)
    fresh = folder / f".{LATEST}.{os.getpid()}.tmp"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(place.name)
    fresh.replace(folder / LATEST)
    sync_folder(folder)


def _forget(folder: Path, newest: int) -> None:
    """Remove all but the last few, and those of a run that had come further before it resumed from here."""
    numbers = sorted(kept(folder))
    later, earlier = [n for n in numbers if n > newest], [n for n in numbers if n <= newest]
    for number in later + earlier[:-KEPT]:
        shutil.rmtree(folder / f"checkpoint-{number}", ignore_errors=True)


def kept(folder: Path) -> list[int]:
    """The numbers of the checkpoints that are there."""
    return [int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-[0-9]*")]


def oldest(folder: Path, what: str) -> int:
    """The least value of a position's number, over the checkpoints that are there."""
    return min(
        int(json.loads((folder / f"checkpoint-{number}" / POSITION_FILE).read_text())[what]) for number in kept(folder)
    )


def read(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The latest state; None where there is none. Raises InputError where it is of another configuration, seed or
    placement, or cannot be read."""
    latest = folder / LATEST
    if not latest.is_symlink():
        return None
    place = latest.resolve()
    try:
        _check(place, json.loads((place / IDENTITY_FILE).read_text()), json.loads(json.dumps(identity)))
        state: dict[str, Any] = torch.load(io.BytesIO((place / STATE_FILE).read_bytes()), weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"{place}: cannot be read ({reason}); point {LATEST} at another checkpoint beside it, or remove "
            "them all to start anew"
        ) from error
    return state


def _check(place: Path, made_with: Mapping[str, Any], asked_for: Mapping[str, Any]) -> None:
    ours, theirs = dict(_flat(asked_for)), dict(_flat(made_with))
    model = theirs.get("policy.model_name")
    if model in FORMER_MODELS:
        theirs["policy.model_name"] = FORMER_MODELS[model]
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
