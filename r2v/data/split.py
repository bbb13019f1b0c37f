"""Data split: tasks for training, for calibration of thresholds, and for evaluation only.

A task's split is a pure function of its key, so adding, repeating or reordering tasks moves none. A benchmark may fix
splits itself (`Task.split`).
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, Protocol

from r2v.errors import InputError, UsageError, nearest

SPLITS = ("train", "calibration", "evaluation", "heldout")
"""`heldout`: whole templates excluded from the other splits and reported in a row of their own."""


class Splittable(Protocol):
    """Task attributes that decide its split."""

    @property
    def task_id(self) -> str: ...
    @property
    def template_id(self) -> str | None: ...
    @property
    def goal(self) -> str: ...
    @property
    def split(self) -> str | None: ...


def split_of(key: str, *, seed: int = 0, heldout: Collection[str] = ()) -> str:
    """Return the split of a task or template: u = SHA-256("split-v1|<seed>|<key>")[:8] / 2^64; train if u < 0.7,
    calibration if u < 0.8, else evaluation; "heldout" for keys in `heldout`."""
    if key in heldout:
        return "heldout"
    u = int.from_bytes(hashlib.sha256(f"split-v1|{seed}|{key}".encode()).digest()[:8], "big") / 2**64
    return "train" if u < 0.7 else "calibration" if u < 0.8 else "evaluation"


def assign(
    tasks: Iterable[Splittable],
    *,
    by: Literal["task_id", "template_id"] = "task_id",
    seed: int = 0,
    heldout: Collection[str] = (),
) -> dict[str, str]:
    """Return task id -> split: the task's own, else that of its id or template.

    Raise InputError if one key, or one goal text, falls into two splits; UsageError for an unknown split or `by`.
    """
    if by not in ("task_id", "template_id"):
        raise UsageError(f"split by {by}: allowed: task_id, template_id")
    assignment: dict[str, str] = {}
    keys: dict[str, str] = {}
    goals: dict[str, tuple[str, str]] = {}
    for task in tasks:
        key = (task.template_id or task.task_id) if by == "template_id" else task.task_id
        split = task.split or split_of(key, seed=seed, heldout=heldout)
        if split not in SPLITS:
            raise UsageError(f"task {task.task_id}: split {split}: {nearest(split, SPLITS)}")
        _settle(keys, by, key, split)
        _check_goal(goals, task, split)
        assignment[task.task_id] = split
    return assignment


def require_split(
    task_ids: Iterable[str], assignment: Mapping[str, str], allowed: Collection[str], what: object
) -> None:
    """Raise InputError if a task is not in an allowed split. `what`: the file that the ids were read from."""
    for task_id in task_ids:
        split = assignment.get(task_id)
        if split not in allowed:
            state = "belongs to no known task" if split is None else f"is in the {split} split"
            raise InputError(
                f"{what}: task {task_id} {state}; only {', '.join(sorted(allowed))} tasks may "
                "be used here; take those episodes out"
            )


def _settle(placed: dict[str, str], kind: str, key: str, split: str) -> None:
    earlier = placed.setdefault(key, split)
    if earlier != split:
        raise InputError(f"{kind} {key} is in two splits, {earlier} and {split}; give it one")


def _check_goal(goals: dict[str, tuple[str, str]], task: Splittable, split: str) -> None:
    earlier, other = goals.setdefault(normalised(task.goal), (split, task.task_id))
    if earlier != split:
        raise InputError(
            f"tasks {other} ({earlier}) and {task.task_id} ({split}) have the same goal text; "
            "split by template_id or put them into one split"
        )


def normalised(text: str) -> str:
    """Return text for comparison: NFKC, case folded, runs of white space as one blank."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
