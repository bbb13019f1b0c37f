from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pytest

from r2v.data.split import assign, require_split, split_of
from r2v.errors import InputError, UsageError


@dataclass(frozen=True)
class Task:
    task_id: str
    goal: str
    template_id: str | None = None
    split: str | None = None


def tasks(n: int) -> list[Task]:
    return [Task(f"t{i}", f"goal {i}", f"template {i % 7}") for i in range(n)]


def test_the_formula_is_the_documented_one() -> None:
    for i in range(200):
        u = int(hashlib.sha256(f"split-v1|3|t{i}".encode()).hexdigest()[:16], 16) / 2**64
        expected = "train" if u < 0.7 else "calibration" if u < 0.8 else "evaluation"
        assert split_of(f"t{i}", seed=3) == expected


def test_shares_are_70_10_20() -> None:
    counts = dict.fromkeys(("train", "calibration", "evaluation"), 0)
    for i in range(20_000):
        counts[split_of(str(i))] += 1
    assert [round(n / 20_000, 2) for n in counts.values()] == [0.7, 0.1, 0.2]


def test_no_key_in_two_splits() -> None:
    by_template = assign(tasks(70), by="template_id")
    assert len({(task.template_id, by_template[task.task_id]) for task in tasks(70)}) == 7
    with pytest.raises(InputError, match="template_id T is in two splits, train and evaluation"):
        assign([Task("a", "x", "T", "train"), Task("b", "y", "T", "evaluation")], by="template_id")
    with pytest.raises(InputError, match="task_id a is in two splits"):
        assign([Task("a", "x", split="train"), Task("a", "x", split="evaluation")])


def test_a_task_outside_its_split_is_named_with_its_file() -> None:
    assignment = {"a": "train", "b": "evaluation"}
    require_split(["a", "a"], assignment, {"train"}, "x.jsonl")
    message = r"x\.jsonl: task b is in the evaluation split; only calibration, train"
    with pytest.raises(InputError, match=message):
        require_split(["a", "b"], assignment, {"train", "calibration"}, "x.jsonl")
    with pytest.raises(InputError, match="task z belongs to no known task"):
        require_split(["z"], assignment, {"train"}, "x.jsonl")


def test_same_goal_in_two_splits_is_refused() -> None:
    twins = [Task("a", "Close  the\nTicket", split="train"), Task("b", "close the ticket", split="evaluation")]
    with pytest.raises(InputError, match="same goal text") as refusal:
        assign(twins)
    assert refusal.value.exit_code == 3
    assert assign([Task("a", "same", split="train"), Task("b", "same", split="train")])


def test_order_duplicates_and_additions_move_nobody() -> None:
    some = tasks(100)
    plain = assign(some)
    assert assign([*reversed(some), *some[:10]]) == plain
    assert plain.items() <= assign(tasks(150)).items()
    assert assign(some, seed=1) != plain


def test_a_tasks_own_split_and_held_out_keys_come_first() -> None:
    given = [Task("a", "x", split="calibration"), Task("b", "y", "T"), Task("c", "z", "U")]
    assignment = assign(given, by="template_id", heldout={"T"})
    assert assignment == {"a": "calibration", "b": "heldout", "c": split_of("U")}
    with pytest.raises(UsageError, match="did you mean evaluation"):
        assign([Task("a", "x", split="evaluaton")])
