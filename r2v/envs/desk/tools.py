"""Desk's tools as JSON schemas.

An argument marked `x-free` accepts any value of its sort: the wording of a reply, any free technician.
"""

from __future__ import annotations

from typing import Any

from r2v.envs.base import tool
from r2v.envs.desk.vocabulary import KINDS, STATES, VERBS, parse

_TEXT: dict[str, Any] = {"type": "string"}
_RECORD = {"name": _TEXT, "team": _TEXT, "item": _TEXT, "id": {"type": "string", "pattern": "^r[0-9]{3}$"}}


TOOLS = (
    tool(
        "find",
        "List the records of a kind that a search for a name brings up.",
        kind={"type": "string", "enum": list(KINDS)},
        name=_TEXT,
    ),
    tool("more", "Show the next page of the list."),
    tool("refresh", "Show the current page again."),
    tool("get", "Open a record; its fields and id must agree.", **_RECORD),
    tool(
        "policy",
        "Show what the policy says to do with a record of each status.",
        kind={"type": "string", "enum": list(KINDS)},
    ),
    tool("staff", "Show the technicians a team can call on.", team=_TEXT),
    tool("close", "Close the open record. Cannot be undone.", **_RECORD),
    tool(
        "assign",
        "Give the open record to a technician in the state named. Cannot be undone.",
        **_RECORD,
        state={"type": "string", "enum": list(STATES)},
        tech={"type": "string", "x-free": True},
    ),
    tool(
        "decide",
        "Decide the open record, whose status is named, as the policy says. Cannot be undone.",
        **_RECORD,
        status=_TEXT,
        verb={"type": "string", "enum": list(VERBS)},
    ),
    tool(
        "reply",
        "Write to the requester of a record.",
        name=_TEXT,
        id=_RECORD["id"],
        text={"type": "string", "x-free": True},
    ),
    tool("done", "Say that the task is finished."),
)

ACTS = ("close", "assign", "decide")
"""The tools that change a record irreversibly."""

ARGUMENTS = {tool.name: tuple(tool.parameters["properties"]) for tool in TOOLS}


def parse_call(action: str) -> tuple[str, dict[str, str]] | None:
    """Return (tool, arguments) of an action, None unless it is a JSON object of strings with a tool."""
    fields = parse(action)
    if fields is None or "tool" not in fields:
        return None
    return fields["tool"], {name: value for name, value in fields.items() if name != "tool"}
