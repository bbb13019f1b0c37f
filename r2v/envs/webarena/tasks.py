"""WebArena's tasks from the official package's list (webarena/test.raw.json).

A task's goal is its intent. If several tasks share an intent and differ in the first page, the goal names the page.
webarena-verified's list of the same tasks decides which of them change a site.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from r2v.envs.base import Task
from r2v.envs.webarena.addresses import PUBLIC_NAMES, TASK_SITES
from r2v.envs.webarena.home import child_package
from r2v.errors import UsageError

WEBARENA_TASKS = 812


def chosen_tasks(ids: Sequence[int] | None, sites: Collection[str] | None) -> list[Task]:
    """Return the tasks with these ids (None: all) that need only these sites (None: any), in the official order. Raises
    UsageError for an unknown id or site, and if no task is left."""
    listed = official_tasks(child_package("webarena"))
    for id_ in ids or ():
        if id_ not in listed:
            raise UsageError(f"env.options.tasks: no task {id_!r:.40}; WebArena's are 0 to {WEBARENA_TASKS - 1}")
    for site in sites or ():
        if site not in TASK_SITES:
            raise UsageError(f"env.options.sites: no site {site!r:.40}; allowed: {', '.join(TASK_SITES)}")
    changing = tasks_that_change(child_package("webarena_verified"))
    chosen_ids = None if ids is None else set(ids)
    texts = Counter(record["intent"] for record in listed.values())
    tasks = [
        _task(record, alone=texts[record["intent"]] == 1, mutates=id_ in changing)
        for id_, record in listed.items()
        if (chosen_ids is None or id_ in chosen_ids) and (sites is None or set(record["sites"]) <= set(sites))
    ]
    if not tasks:
        raise UsageError(f"env.options: no task has sites of {', '.join(sites or ())} alone; name more sites or tasks")
    return tasks


def _task(record: Mapping[str, Any], *, alone: bool, mutates: bool) -> Task:
    goal = record["intent"]
    if not alone:
        goal += f" (beginning at {public(record['start_url'])})"
    return Task(
        task_id=f"webarena.{record['task_id']}",
        goal=goal,
        template_id=f"webarena-{record['intent_template_id']}",
        payload={
            "id": f"browsergym/webarena.{record['task_id']}",
            "sites": record["sites"],
            "judged": is_judged(record),
        },
        mutates=mutates,
    )


def public(text: str) -> str:
    """Return a text of the official list with the public names of its sites."""
    for site in sorted(PUBLIC_NAMES, key=len, reverse=True):
        text = text.replace(f"__{site.upper()}__", PUBLIC_NAMES[site])
    return text


def is_judged(record: Mapping[str, Any]) -> bool:
    """True if a model judges the answer (fuzzy_match)."""
    return "fuzzy_match" in (record["eval"].get("reference_answers") or {})


@cache
def official_tasks(package: Path) -> dict[int, dict[str, Any]]:
    """Return the records of the official list by id."""
    records = json.loads((package / "test.raw.json").read_text())
    return {record["task_id"]: record for record in records}


@cache
def tasks_that_change(package: Path) -> frozenset[int]:
    """Return the ids of the tasks that change a site, by webarena-verified's list."""
    records = json.loads((package / "assets" / "dataset" / "webarena-verified.json").read_text())
    return frozenset(
        record["task_id"]
        for record in records
        if any(rule.get("expected", {}).get("task_type") == "mutate" for rule in record["eval"])
    )
