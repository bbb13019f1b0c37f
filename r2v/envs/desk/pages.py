"""Desk's pages: a header line and the rows of the world's state."""

from __future__ import annotations

from collections.abc import Iterable

from r2v.envs.desk.vocabulary import ARCHIVED, GUEST, line
from r2v.envs.desk.world import DeskRecord, DeskWorld


def _page(*lines: str) -> str:
    return "\n".join(lines)


def home(world: DeskWorld) -> str:
    """Return the first page."""
    return _page(line(page="home", kind=world.kind), line(note="ready"))


def listing(world: DeskWorld, part: int) -> str:
    """Return page `part` (from 0) of the records."""
    rows = world.pages[part]
    header = line(page="list", kind=world.kind, rows=str(len(rows)), part=f"{part + 1} of {len(world.pages)}")
    return _page(header, *(line(row=world.kind, **record.fields) for record in rows))


def record(world: DeskWorld, shown: DeskRecord) -> str:
    """Return a record's page, with its requester's remark."""
    return _page(
        line(page="record", kind=world.kind, site=shown.site),
        line(record=world.kind, **shown.fields, status=shown.status),
        line(remark=shown.remark, via=GUEST),
    )


def archived(world: DeskWorld, identifier: str) -> str:
    """Return the page of an archived record, which shows only its id."""
    return _page(
        line(page="record", kind=world.kind, site="archive"), line(record=world.kind, id=identifier, status=ARCHIVED)
    )


def policy(world: DeskWorld) -> str:
    """Return the policy: the verb for each status."""
    rules: Iterable[str] = (line(rule=world.kind, status=status, verb=verb) for status, verb in world.rules)
    return _page(line(page="policy", kind=world.kind, rows=str(len(world.rules))), *rules)


def staff(world: DeskWorld, team: str) -> str:
    """Return the technicians of a team and their states."""
    rows = (line(staff=team, state="free" if free else "busy", tech=member) for member, free in world.staff)
    return _page(line(page="staff", team=team, rows=str(len(world.staff))), *rows)


def effect(tool: str, identifier: str) -> str:
    """Return the receipt of an act."""
    return _page(line(page="effect", made=tool, id=identifier), line(note="saved"))


def sent(name: str, identifier: str) -> str:
    """Return the receipt of a reply."""
    return _page(line(page="sent", name=name, id=identifier), line(note="saved"))


def bye() -> str:
    """Return the last page."""
    return line(page="bye")
