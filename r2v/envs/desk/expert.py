"""Desk's stand-in teacher: a rule-based reader of goal and history with two declared flaws.

It carries out the next action that its notes call for. Both flaws can be switched off: it slips at a share `slips` of
the steps (drawn by the request's key), which alters only choices and acts, and for a share `weakness` of the goals
(drawn by the goal) it reads carelessly and mistakes look-alikes for the record (`reader.Notes`).
"""

from __future__ import annotations

from dataclasses import dataclass

from r2v.envs.desk.reader import RECORD_KEY, STALE_PATIENCE, LineFields, Notes, read
from r2v.envs.desk.vocabulary import VERBS, WORDINGS, line
from r2v.llm.types import Request
from r2v.randomness import Key, generator, uniform


@dataclass(frozen=True, kw_only=True)
class DeskExpert:
    """Function from a request to the next action. See the module for `slips` and `weakness`."""

    slips: float = 0.03
    weakness: float = 0.4

    def __call__(self, request: Request) -> str:
        """Return the action text."""
        goal = next(message.text for message in request.messages if message.role == "user")
        notes = read(request.messages, careless=uniform("desk", "weakness", goal) < self.weakness)
        action = plan(notes, request.key)
        if uniform("desk", "slip", *request.key) < self.slips:
            action = _slip(notes, action, request.key)
        return line(**action)


def plan(notes: Notes, key: Key) -> LineFields:
    """Return the next action for these notes; `key` draws the free choices."""
    if 0 < notes.stale <= STALE_PATIENCE:
        return {"tool": "refresh"}
    if notes.acted is not None:
        return _finish(notes, notes.acted, key)
    if notes.target is None or notes.opened != notes.target or notes.status is None:
        return _locate(notes)
    record = {name: notes.goal[name] for name in RECORD_KEY} | {"id": notes.target}
    match notes.goal["goal"]:
        case "close":
            return {"tool": "close"} | record
        case "assign":
            return _assign(notes, record, key)
    return _decide(notes, record)


def _locate(notes: Notes) -> LineFields:
    """Return the next call that finds and opens the record."""
    if notes.target is not None:
        return {"tool": "get"} | {name: notes.goal[name] for name in RECORD_KEY} | {"id": notes.target}
    if notes.tool in ("find", "more") and notes.cut:
        return {"tool": "refresh"}
    if notes.tool in ("find", "more") and notes.part + 1 < notes.parts:
        return {"tool": "more"}
    return {"tool": "find", "kind": notes.goal["kind"], "name": notes.goal["name"]}


def _assign(notes: Notes, record: LineFields, key: Key) -> LineFields:
    free = [member for member, is_free in notes.staff if is_free]
    if free:
        return {"tool": "assign"} | record | {"state": "free", "tech": generator("desk", "free", *key).choice(free)}
    return {"tool": "refresh"} if notes.tool == "staff" else {"tool": "staff", "team": notes.goal["team"]}


def _decide(notes: Notes, record: LineFields) -> LineFields:
    if notes.status is not None and notes.verb is not None:
        return {"tool": "decide"} | record | {"status": notes.status, "verb": notes.verb}
    return {"tool": "refresh"} if notes.tool == "policy" else {"tool": "policy", "kind": notes.goal["kind"]}


def _finish(notes: Notes, identifier: str, key: Key) -> LineFields:
    if notes.goal["goal"] == "settle" and not notes.replied:
        text = generator("desk", "wording", *key).choice(WORDINGS)
        return {"tool": "reply", "name": notes.goal["name"], "id": identifier, "text": text}
    return {"tool": "done"}


def _slip(notes: Notes, action: LineFields, key: Key) -> LineFields:
    """Return an inattentive version of an action: the wrong row, verb or technician, or a forgotten act."""
    draw = generator("desk", "slip", "choice", *key)
    match action["tool"]:
        case "get":
            others = [row["id"] for row in notes.rows if row["id"] != action["id"]]
            return action | {"id": draw.choice(others)} if others else action
        case "assign":
            busy = [member for member, is_free in notes.staff if not is_free]
            return action | {"state": "busy", "tech": draw.choice(busy)} if busy else action
        case "decide":
            return action | {"verb": draw.choice([verb for verb in VERBS if verb != action["verb"]])}
        case "close":
            return {"tool": "done"}
    return action
