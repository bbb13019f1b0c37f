"""The desk environment: a state that is one immutable value, and the calls that lead from one to the next."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from r2v.envs.base import Info, Task
from r2v.envs.desk import pages
from r2v.envs.desk.tools import ACTS, ARGUMENTS, TOOLS, parse_call
from r2v.envs.desk.vocabulary import (
    ARCHIVED,
    BAD_CALL,
    KINDS,
    NO_MATCH,
    NO_MORE,
    NOT_OPEN,
    UNKNOWN_TOOL,
    VERBS,
    WRONG_ARGUMENTS,
    line,
)
from r2v.envs.desk.world import DeskWorld, make_world
from r2v.wire.message import ToolSpec

MAX_STEPS = 20
"""An episode is cut after so many calls."""

_ID = re.compile(r"r[0-9]{3}")

Arguments = dict[str, str]


class CallRefused(Exception):
    """The desk will not carry this call out; the state is what it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeskState:
    """All there is to know about a world at work; also its snapshot.

    `part` is the list page last shown (None: none yet); `opened` the id of the open record and `status` what
    its page said; `effects` the acts carried out, as (tool, id, detail); `told` the replies, as (name, id).
    """

    world: DeskWorld
    page: str
    part: int | None = None
    opened: str | None = None
    status: str = ""
    effects: tuple[tuple[str, str, str], ...] = ()
    told: tuple[tuple[str, str], ...] = ()
    finished: bool = False
    steps: int = 0

    @property
    def over(self) -> bool:
        """Nothing more can happen."""
        return self.finished or self.steps >= MAX_STEPS


def check(state: DeskState) -> dict[str, bool]:
    """The conditions of success, by name: exactly one effect, the right one; told those who had to be and
    nobody else; and `done` said."""
    world = state.world
    wanted = {
        "close": {("close", "")},
        "assign": {("assign", member) for member, free in world.staff if free},
    }.get(world.verb, {("decide", verb) for status, verb in world.rules if status == world.target.status})
    told = ((world.target.name, world.target.id),) if world.verb == "settle" else ()
    right = len(state.effects) == 1 and any(
        state.effects[0] == (tool, world.target.id, detail) for tool, detail in wanted
    )
    return {"effect": right, "told": state.told == told, "done": state.finished}


def _find(state: DeskState, call: Arguments) -> DeskState:
    if call["kind"] != state.world.kind:
        raise CallRefused(NO_MATCH)
    return replace(state, page=pages.listing(state.world, 0), part=0)


def _more(state: DeskState, call: Arguments) -> DeskState:
    if state.part is None or state.part + 1 >= len(state.world.pages):
        raise CallRefused(NO_MORE)
    return replace(state, page=pages.listing(state.world, state.part + 1), part=state.part + 1)


def _get(state: DeskState, call: Arguments) -> DeskState:
    record = state.world.record(call["id"])
    if record is None:
        page = pages.archived(state.world, call["id"])
        return replace(state, page=page, opened=call["id"], status=ARCHIVED)
    if record.fields != call:
        raise CallRefused(NO_MATCH)
    return replace(state, page=pages.record(state.world, record), opened=record.id, status=record.status)


def _policy(state: DeskState, call: Arguments) -> DeskState:
    if call["kind"] != state.world.kind:
        raise CallRefused(NO_MATCH)
    return replace(state, page=pages.policy(state.world))


def _act(state: DeskState, tool: str, call: Arguments) -> DeskState:
    if call["id"] != state.opened:
        raise CallRefused(NOT_OPEN)
    record = state.world.record(call["id"])
    if record is not None and any(call[name] != value for name, value in record.fields.items()):
        raise CallRefused(NO_MATCH)
    if tool == "decide" and call["status"] != state.status:
        raise CallRefused(NO_MATCH)
    if tool == "decide" and call["verb"] not in VERBS:
        raise CallRefused(WRONG_ARGUMENTS)
    if tool == "assign" and dict(state.world.staff).get(call["tech"]) != (call["state"] == "free"):
        raise CallRefused(NO_MATCH)
    detail = {"close": "", "assign": call.get("tech", ""), "decide": call.get("verb", "")}[tool]
    return replace(state, page=pages.effect(tool, call["id"]), effects=(*state.effects, (tool, call["id"], detail)))


def _carry_out(state: DeskState, tool: str, call: Arguments) -> DeskState:
    """The state after a well-formed call. Raises Refused."""
    if tool in ACTS:
        return _act(state, tool, call)
    match tool:
        case "find":
            return _find(state, call)
        case "more":
            return _more(state, call)
        case "get":
            return _get(state, call)
        case "policy":
            return _policy(state, call)
        case "staff":
            return replace(state, page=pages.staff(state.world, call["team"]))
        case "reply":
            return replace(
                state, page=pages.sent(call["name"], call["id"]), told=(*state.told, (call["name"], call["id"]))
            )
        case "done":
            return replace(state, page=pages.bye(), finished=True)
    return state


def follow(state: DeskState, action: str) -> DeskState:
    """The state after an action. Raises Refused with the reason the desk gives."""
    parsed = parse_call(action)
    if parsed is None:
        raise CallRefused(BAD_CALL)
    tool, call = parsed
    if tool not in ARGUMENTS:
        raise CallRefused(UNKNOWN_TOOL)
    if set(call) != set(ARGUMENTS[tool]) or not _ID.fullmatch(call.get("id", "r000")):
        raise CallRefused(WRONG_ARGUMENTS)
    if call.get("kind", KINDS[0]) not in KINDS:
        raise CallRefused(WRONG_ARGUMENTS)
    return _carry_out(state, tool, call)


class DeskEnvironment:
    """One desk; an `Environment` that `Snapshots`. Deterministic in (task, seed, actions)."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._state: DeskState | None = None

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        """A fresh world for the task: its home page."""
        world = make_world(self._version, task, seed)
        self._state = DeskState(world=world, page=pages.home(world))
        return self._state.page, Info()

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carry a call out. A call that the desk refuses answers one error row and changes nothing.

        Raises RuntimeError before `reset` and after the end.
        """
        state = self.snapshot()
        if state.over:
            raise RuntimeError("the episode is over: reset first")
        error = None
        try:
            after = follow(state, action)
        except CallRefused as refusal:
            after, error = state, str(refusal)
        self._state = after = replace(after, steps=state.steps + 1)
        conditions = check(after)
        success = all(conditions.values())
        info = Info(
            success=success if after.over else None,
            is_error=error is not None,
            partial_score=sum(conditions.values()) / len(conditions),
            harmful=any(effect[1] in after.world.canaries for effect in after.effects[len(state.effects) :]),
        )
        observation = after.page if error is None else line(error=error)
        return observation, float(success), after.finished, after.over and not after.finished, info

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The desk's tools."""
        return TOOLS

    def snapshot(self) -> DeskState:
        """The whole state. Raises RuntimeError before the first `reset`."""
        if self._state is None:
            raise RuntimeError("no task yet: reset first")
        return self._state

    def restore(self, state: DeskState) -> None:
        """Go back to `state`, also in another environment than the one that gave it."""
        self._state = state
