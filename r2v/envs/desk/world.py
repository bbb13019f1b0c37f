"""Hidden state behind the pages: records, policy, staff. Drawn once per (task, seed) and immutable."""

from __future__ import annotations

import random
from dataclasses import dataclass

from r2v.envs.base import Task
from r2v.envs.desk.vocabulary import (
    ITEM_NAMES,
    PERSON_NAMES,
    REMARKS,
    SITES,
    STATUSES,
    TEAMS,
    TECHS,
    VERBS,
    canaries,
    ordinary,
)
from r2v.randomness import generator

PAGE_ROWS = 7
TWO_PAGES = 0.3
NEAR_ROWS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskRecord:
    """One record of the desk."""

    name: str
    team: str
    item: str
    id: str
    status: str
    site: str
    remark: str

    @property
    def fields(self) -> dict[str, str]:
        """Return the fields of the record's row in a list, in order."""
        return {"name": self.name, "team": self.team, "item": self.item, "id": self.id}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskWorld:
    """The hidden state of one task. `pages` are the records as a search shows them, `rules` the policy's (status, verb)
    pairs, `staff` (technician, True if free) pairs. An act on one of `canaries` obeys a planted instruction."""

    verb: str
    kind: str
    target: DeskRecord
    pages: tuple[tuple[DeskRecord, ...], ...]
    rules: tuple[tuple[str, str], ...]
    staff: tuple[tuple[str, bool], ...]
    canaries: frozenset[str]

    def record(self, identifier: str) -> DeskRecord | None:
        """Return this world's record with this id, None without one."""
        return next((record for page in self.pages for record in page if record.id == identifier), None)


def make_world(version: str, task: Task, seed: int) -> DeskWorld:
    """Return the world of a task under a seed."""
    draw = generator("desk", version, "world", task.task_id, seed)
    key = (task.payload["name"], task.payload["team"], task.payload["item"])
    two = draw.random() < TWO_PAGES
    count = PAGE_ROWS + draw.randint(3, 5) if two else draw.randint(5, PAGE_ROWS)
    keys = [key, *_others(draw, key, count - 1)]
    ids = draw.sample(ordinary(task.goal), count)
    records = [
        DeskRecord(
            name=name,
            team=team,
            item=item,
            id=identifier,
            status=draw.choice(STATUSES),
            site=draw.choice(SITES),
            remark=draw.choice(REMARKS),
        )
        for (name, team, item), identifier in zip(keys, ids, strict=True)
    ]
    target = records[0]
    draw.shuffle(records)
    return DeskWorld(
        verb=task.payload["goal"],
        kind=task.payload["kind"],
        target=target,
        pages=tuple(tuple(records[at : at + PAGE_ROWS]) for at in range(0, count, PAGE_ROWS)),
        rules=_rules(draw, target.status),
        staff=_staff(draw),
        canaries=frozenset(canaries(task.goal)),
    )


def _others(draw: random.Random, key: tuple[str, str, str], count: int) -> list[tuple[str, str, str]]:
    """Return distinct keys other than `key`; the first NEAR_ROWS share two of its fields."""
    other_keys: list[tuple[str, str, str]] = []
    while len(other_keys) < count:
        other = [draw.choice(PERSON_NAMES), draw.choice(TEAMS), draw.choice(ITEM_NAMES)]
        if len(other_keys) < NEAR_ROWS:
            for shared in draw.sample(range(3), 2):
                other[shared] = key[shared]
        candidate = (other[0], other[1], other[2])
        if candidate != key and candidate not in other_keys:
            other_keys.append(candidate)
    return other_keys


def _rules(draw: random.Random, status: str) -> tuple[tuple[str, str], ...]:
    """Return four statuses, the target's among them, with the policy's verb for each."""
    statuses = [status, *draw.sample([other for other in STATUSES if other != status], 3)]
    draw.shuffle(statuses)
    return tuple((name, draw.choice(VERBS)) for name in statuses)


def _staff(draw: random.Random) -> tuple[tuple[str, bool], ...]:
    """Return five technicians, two or three of them free."""
    members = draw.sample(TECHS, 5)
    free = set(draw.sample(members, draw.randint(2, 3)))
    return tuple((member, member in free) for member in members)
