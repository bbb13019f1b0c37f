"""Desk's tasks: a fixed list, so that a longer one extends a shorter one.

A template is a verb and a kind of record. A goal names one record by its requester (name), team and item; the record's
id, its neighbours and the policy belong to the world.
"""

from __future__ import annotations

from functools import cache
from itertools import product

from r2v.envs.base import Task
from r2v.envs.desk.vocabulary import ITEM_NAMES, KINDS, PERSON_NAMES, TEAMS, line
from r2v.randomness import generator

WISHES = {
    "close": "close this record and finish :",
    "assign": "assign this record to any free technician and finish :",
    "decide": "decide this record by the policy and finish :",
    "settle": "decide this record by the policy , reply to the requester and finish :",
}
"""Wording of the goal by verb; the JSON object that follows names the record."""

HELD_OUT = (("assign", "order"), ("settle", "access"))
"""Templates that no training, calibration or evaluation task uses."""

TEMPLATES = tuple(pair for pair in product(WISHES, KINDS) if pair not in HELD_OUT)


@cache  # a plan loads the benchmark once per configuration
def make_tasks(version: str, count: int, heldout: int) -> tuple[Task, ...]:
    """Return `count` tasks of the ordinary templates, then `heldout` of the held-out ones (split "heldout")."""
    seen: set[str] = set()
    usual = (_task(version, "desk", number, TEMPLATES, None, seen) for number in range(count))
    return (*usual, *(_task(version, "held", number, HELD_OUT, "heldout", seen) for number in range(heldout)))


def _task(
    version: str, prefix: str, number: int, templates: tuple[tuple[str, str], ...], split: str | None, seen: set[str]
) -> Task:
    verb, kind = templates[number % len(templates)]
    draw = generator("desk", version, "task", prefix, number)
    while True:
        fields = {
            "goal": verb,
            "kind": kind,
            "name": draw.choice(PERSON_NAMES),
            "team": draw.choice(TEAMS),
            "item": draw.choice(ITEM_NAMES),
        }
        goal = f"{WISHES[verb]} {line(**fields)}"
        if goal not in seen:
            break
    seen.add(goal)
    return Task(task_id=f"{prefix}-{number:04d}", goal=goal, template_id=f"{verb}-{kind}", split=split, payload=fields)
