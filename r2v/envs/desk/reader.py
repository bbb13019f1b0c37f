"""History reader of the desk's expert: rows shown so far, calls carried out, and the newest page's answer.

The reader ignores lines written by outsiders, and pages that do not answer the last call.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from r2v.envs.desk.tools import ACTS, parse_call
from r2v.envs.desk.vocabulary import ARCHIVED, GUEST, NO_MATCH, REFUSALS, parse, parse_goal
from r2v.wire.message import Message

RECORD_KEY = ("name", "team", "item")
"""The fields that identify a record."""

EXPECTED = {
    "find": "list",
    "more": "list",
    "get": "record",
    "policy": "policy",
    "staff": "staff",
    "close": "effect",
    "assign": "effect",
    "decide": "effect",
    "reply": "sent",
}
"""Page name by call. `refresh` repeats the page of the call before it."""

STALE_PATIENCE = 3
"""Unrelated pages in a row after which the reader assumes that the call was refused."""

LineFields = dict[str, str]


@dataclass(kw_only=True)
class Notes:
    """A reader's knowledge. A careless reader is deceived by look-alikes: it compares neither teams nor the kind of a
    rule, and overlooks that a record is archived."""

    goal: LineFields
    careless: bool = False
    tool: str = ""
    """Last tool carried out, refreshes aside."""
    call: LineFields = field(default_factory=dict)
    stale: int = 0
    """Pages in a row that do not answer the last call."""
    part: int = 0
    parts: int = 1
    cut: bool = False
    """True if the list page shows fewer rows than its header counts."""
    rows: list[LineFields] = field(default_factory=list)
    distrusted: set[str] = field(default_factory=set)
    opened: str | None = None
    status: str | None = None
    verb: str | None = None
    staff: list[tuple[str, bool]] = field(default_factory=list)
    acted: str | None = None
    """Id of the record on which an act was carried out."""
    replied: bool = False

    @property
    def target(self) -> str | None:
        """Return the id of the first trusted row that matches the goal's record, None without one."""
        compared = ("name", "item") if self.careless else RECORD_KEY
        return next(
            (
                row["id"]
                for row in self.rows
                if row["id"] not in self.distrusted and all(row.get(name) == self.goal[name] for name in compared)
            ),
            None,
        )

    def read(self, action: str, observation: str) -> None:
        """Record a call and the page that answered it."""
        tool, call = parse_call(action) or ("", {})
        lines = map(parse, observation.splitlines())
        page = [fields for fields in lines if fields and fields.get("via") != GUEST]
        error = next((fields["error"] for fields in page if "error" in fields), None)
        if error is not None:
            self._failed(error, call)
            return
        if tool in EXPECTED:
            self._carried_out(tool, call)
        self._look(page)

    def _failed(self, error: str, call: LineFields) -> None:
        """Distrust the id of a refused call whose other fields are right; an error of the world means nothing."""
        if error in REFUSALS and all(call.get(name) == self.goal[name] for name in RECORD_KEY) and "id" in call:
            self._distrust(call["id"])

    def _distrust(self, identifier: str) -> None:
        self.distrusted.add(identifier)
        self.opened = None if self.opened == identifier else self.opened

    def _carried_out(self, tool: str, call: LineFields) -> None:
        self.tool, self.call, self.stale = tool, call, 0
        self.acted = call.get("id") if tool in ACTS else self.acted
        self.replied |= tool == "reply"
        if tool in ("find", "more"):
            self.part = self.part + 1 if tool == "more" else 0
        if tool == "get":
            self.opened, self.status = call.get("id"), None

    def _look(self, page: list[LineFields]) -> None:
        header = next((fields for fields in page if "page" in fields), {})
        if not self.tool:
            return
        if not self._answers(header, page):
            self.stale += 1
            if self.stale > STALE_PATIENCE and self.tool == "get":
                self._failed(NO_MATCH, self.call)
            return
        self.stale = 0
        match header["page"]:
            case "list":
                self._look_at_list(header, page)
            case "record":
                self._look_at_record(page)
            case "policy":
                self._look_at_policy(page)
            case "staff":
                self.staff = [(row["tech"], row.get("state") == "free") for row in page if "tech" in row]

    def _answers(self, header: LineFields, page: list[LineFields]) -> bool:
        if header.get("page") != EXPECTED[self.tool]:
            return False
        if self.tool in ("find", "more"):
            return header.get("part", "").startswith(f"{self.part + 1} ")
        if self.tool == "get":
            return any("record" in row and row.get("id") == self.call.get("id") for row in page)
        return self.tool in ("policy", "staff") or header.get("id") == self.call.get("id")

    def _look_at_list(self, header: LineFields, page: list[LineFields]) -> None:
        self.parts = int(header["part"].split()[-1])
        shown = [row for row in page if "row" in row and "id" in row]
        self.cut = len(shown) < int(header.get("rows", "0"))
        self.rows.extend(row for row in shown if row not in self.rows)

    def _look_at_record(self, page: list[LineFields]) -> None:
        record = next(row for row in page if "record" in row and row.get("id") == self.call.get("id"))
        self.status = record.get("status")
        if self.status == ARCHIVED and not self.careless:
            self._distrust(record["id"])

    def _look_at_policy(self, page: list[LineFields]) -> None:
        self.verb = next(
            (
                row.get("verb")
                for row in page
                if "rule" in row
                and row.get("status") == self.status
                and (self.careless or row["rule"] == self.goal["kind"])
            ),
            None,
        )
        if self.status == ARCHIVED and self.opened:
            self._distrust(self.opened)


def read(messages: tuple[Message, ...], *, careless: bool = False) -> Notes:
    """Return the notes of a whole conversation: user = goal, tool = observations, assistant = actions."""
    goal = next(message.text for message in messages if message.role == "user")
    notes = Notes(goal=parse_goal(goal), careless=careless)
    actions = [message.text for message in messages if message.role == "assistant"]
    observations = [message.text for message in messages if message.role == "tool"]
    for action, observation in zip(actions, observations[1:], strict=True):
        notes.read(action, observation)
    return notes
