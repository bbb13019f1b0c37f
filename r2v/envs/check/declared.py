"""Check of a benchmark's declarations: name, version, capabilities, tasks with their splits and goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from r2v.data.split import SPLITS, normalised, split_of
from r2v.envs.base import Capabilities, Demonstrated, Task
from r2v.envs.check.findings import RAISED, CheckFindings
from r2v.envs.guard import shape


def check_declared(benchmark: Any, findings: CheckFindings) -> list[Task]:
    """Check the declarations and return the tasks to play, one of each split in turn; empty if nothing is playable."""
    for name, kind in (("name", str), ("version", str), ("capabilities", Capabilities)):
        if not hasattr(benchmark, name):
            findings.fault(f"it lacks {name}; expected a {kind.__name__}")
        elif not isinstance(value := getattr(benchmark, name), kind):
            findings.fault(f"{name} is {value!r:.60}; expected a {kind.__name__}")
    lacks = [name for name in ("tasks", "make") if not callable(getattr(benchmark, name, None))]
    for name in lacks:
        findings.fault(f"it lacks the method {name}()")
    _check_name(benchmark, findings)
    _check_expert(benchmark, findings)
    tasks = [] if "tasks" in lacks else _check_tasks(benchmark, findings)
    return [] if "make" in lacks else _in_turn(tasks)


def _check_name(benchmark: Any, findings: CheckFindings) -> None:
    name = getattr(benchmark, "name", None)
    if isinstance(name, str) and not any(letter.isascii() and letter.isalnum() for letter in name):
        findings.fault(f"name is {name!r:.60}; expected at least one letter or digit: runs are named by it")
    if getattr(benchmark, "version", None) == "":
        findings.fault("version is empty: results of two versions could not be told apart")


def _check_expert(benchmark: Any, findings: CheckFindings) -> None:
    able = getattr(benchmark, "capabilities", None)
    if not isinstance(able, Capabilities):
        return
    if able.expert and not isinstance(benchmark, Demonstrated):
        findings.fault("capabilities say expert=True, and there is no method expert(request)")
    if not able.expert and isinstance(benchmark, Demonstrated):
        findings.note("there is a method expert(request), and capabilities say expert=False")


def _check_tasks(benchmark: Any, findings: CheckFindings) -> list[Task]:
    listed = findings.call("tasks()", benchmark.tasks)
    if listed is RAISED:
        return []
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        findings.fault(f"tasks() gives {shape(listed)}; expected a list of r2v.envs.base.Task")
        return []
    if not listed:
        findings.fault("tasks() gives no task")
    tasks = [task for task in listed if isinstance(task, Task)]
    if others := [task for task in listed if not isinstance(task, Task)]:
        findings.fault(f"tasks() holds {shape(others[0])}; expected r2v.envs.base.Task")
    if findings.call("tasks(), asked a second time,", benchmark.tasks) != listed:
        findings.fault("tasks() gives other tasks, or another order, when it is asked a second time")
    texts = [task for task in tasks if _has_texts(task, findings)]
    _check_ids(texts, findings)
    _check_splits(texts, findings)
    return texts


def _has_texts(task: Task, findings: CheckFindings) -> bool:
    where = f"task {task.task_id}"
    for name in ("task_id", "goal"):
        if not isinstance(value := getattr(task, name), str) or not value.strip():
            findings.fault(f"a task has the {name} {value!r:.60}; expected text", where[:60])
            return False
    if not isinstance(task.payload, dict):
        findings.fault(f"payload is {shape(task.payload)}; expected a dict", where)
    return True


def _check_ids(tasks: Sequence[Task], findings: CheckFindings) -> None:
    counted = Counter(task.task_id for task in tasks)
    if twice := [name for name, count in counted.items() if count > 1]:
        findings.fault(f"{len(twice)} task ids are given to more than one task, first {twice[0]!r:.60}")
    if bad := [name for name in counted if "/s" in name]:
        findings.fault(f"task id {bad[0]!r:.60} holds '/s', which separates task and seed in an episode's id")


def _check_splits(tasks: Sequence[Task], findings: CheckFindings) -> None:
    goals: dict[str, Task] = {}
    counts = Counter[str]()
    shared = 0
    for task in tasks:
        if task.split is not None and task.split not in SPLITS:
            allowed = f"{', '.join(SPLITS)}, or None"
            findings.fault(f"split is {task.split!r:.40}; allowed: {allowed}", f"task {task.task_id}")
            continue
        counts[split(task)] += 1
        earlier = goals.setdefault(normalised(task.goal), task)
        shared += earlier is not task
        if split(earlier) != split(task):
            findings.fault(
                "two tasks have the same goal text in two splits: what is learnt on one would be measured on the other",
                f"{earlier.task_id} of {split(earlier)} and {task.task_id} of {split(task)}",
            )
    if shared:
        findings.note(f"{shared} tasks share their goal text with another of their split")
    empty = [name for name in ("train", "calibration", "evaluation") if tasks and not counts[name]]
    if empty:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        findings.note(f"no task falls into {' and '.join(empty)}; stages that need one will refuse ({listed})")


def split(task: Task) -> str:
    """Return the split that a task declares, else the one drawn for it."""
    return task.split or split_of(task.task_id)


def _in_turn(tasks: Sequence[Task]) -> list[Task]:
    """Return the first task of each split, then the second of each, and so on."""
    places = Counter[str]()
    ranked = []
    for index, task in enumerate(tasks):
        name = task.split or ""
        ranked.append((places[name], index, task))
        places[name] += 1
    return [task for _, _, task in sorted(ranked, key=lambda item: item[:2])]
