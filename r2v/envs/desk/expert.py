"""The desk's stand-in teacher: a careful reader of goal and history, imperfect in a stated way.

It does the next thing that its notes ask for. Two flaws are built in and can be switched off: it slips at a
share `slips` of the steps where something is chosen or done (keyed by the request's key), and for a share
`weakness` of the goals (keyed by the goal) it reads carelessly and look-alikes take it in (`reader.Notes`).
"""

from __future__ import annotations

from dataclasses import dataclass

from r2v.envs.desk.reader import RECORD_KEY, STALE_PATIENCE, LineFields, Notes, read
from r2v.envs.desk.vocabulary import VERBS, WORDINGS, line
from r2v.llm.types import Request
from r2v.randomness import Key, generator, uniform


@dataclass(frozen=True, kw_only=True)
class DeskExpert:
    """Answers a request with the next action. See the module for `slips` and `weakness`."""

    slips: float = 0.03
    weakness: float = 0.4

    def __call__(self, request: Request) -> str:
        """The action text."""
        goal = next(message.text for message in request.messages if message.role == "user")
        notes = read(request.messages, careless=uniform("desk", "weakness", goal) < self.weakness)
        action = plan(notes, request.key)
        if uniform("desk", "slip", *request.key) < self.slips:
            action = _slip(notes, action, request.key)
        return line(**action)


def plan(notes: Notes, key: Key) -> LineFields:
    """The next thing to do, given what is known. `key` settles the free choices."""
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
    """Find the record and open it."""
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
    """What inattention makes of an action: the wrong row, verb or technician, or a forgotten act."""
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
