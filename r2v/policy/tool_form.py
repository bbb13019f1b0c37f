"""Tool form: an action as a chat template itself writes a call, and back.

    form = ToolForm.of(render, tools)          # None: the template writes none that can be read back
    form.text('{"tool":"get"}')                # '<tool_call>\\n{"name": "get", "arguments": {}}\\n</tool_call>'
    form.actions(text)                         # ('{"tool":"get"}',)

R2V stores, replays and compares lines of JSON; a model that was taught its template's calls is prompted, trained and
read in those. A template is taken at its word only where a call stands in the place of a plain reply, and comes back
from its text as it was: digits, quotes and line breaks in its texts included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from r2v.data.action import parse_action
from r2v.data.episode import Action
from r2v.wire.actions import read_actions
from r2v.wire.message import Message, Part, TextPart, ToolCall, ToolSpec

Render = Callable[[Sequence[Message]], str | None]
"""The text of a conversation, without a generation prompt; None where the template refuses it."""

_ASKED = Message(role="user", content="go")
_REPLY = "qzreply"
_TRIED: Mapping[str, Any] = {"a": '"quoted"\nline <b> & \\ é', "b": "3", "c": 3, "d": True, "e": ["x", {"f": None}]}
"""Arguments that come back as they were, or the template's form is not used."""
_TRIED_SCHEMA = {"properties": {"b": {"type": "string"}}}
_REMEMBERED = 1 << 14


class ToolForm:
    """The form of one template, for these tools."""

    def __init__(self, render: Render, tools: Sequence[ToolSpec], before: str, after: str) -> None:
        self._render, self._before, self._after = render, before, after
        self._tools = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
        self.text = lru_cache(_REMEMBERED)(self._text)

    @classmethod
    def of(cls, render: Render, tools: Sequence[ToolSpec]) -> ToolForm | None:
        """The form in which a template writes calls; None where it has none, or loses something of them."""
        plain = render([_ASKED, Message(role="assistant", content=_REPLY)])
        if plain is None or plain.count(_REPLY) != 1:
            return None
        before, _, after = plain.partition(_REPLY)
        line = json.dumps({"tool": tools[0].name, **_TRIED})
        tried = cls(render, [replace(tools[0], parameters=_TRIED_SCHEMA)], before, after)
        shown = Message(role="assistant", content=tried.text(line))
        called = _turn([parse_action(line)])
        # without blanks, for templates trim texts, and not calls
        as_text, as_call = ("".join((render([_ASKED, said, _ASKED]) or "").split()) for said in (shown, called))
        return cls(render, tools, before, after) if shown.text != line and as_text == as_call else None

    def actions(self, text: str) -> tuple[str, ...]:
        """The actions in what a model said, a line each; the text itself where it holds none."""
        lines = read_actions(Message(role="assistant", content=text), self._tools).lines
        return tuple(map(self._typed, lines)) or (text,)

    def _typed(self, line: str) -> str:
        """The line with its texts as texts: a form without quotes does not tell them from numbers."""
        call = parse_action(line)
        schema = self._tools[call.action_type]
        texts = {
            name: json.dumps(value, ensure_ascii=False)
            for name, value in call.arguments.items()
            if not isinstance(value, str) and schema.get(name, {}).get("type") == "string"
        }
        return ToolCall(name=call.action_type, arguments=json.dumps(call.arguments | texts)).line if texts else line

    def _text(self, action: str) -> str:
        """An action in this form; itself where it is no call of these tools, or would not come back as it was."""
        lines, calls = action.split("\n"), list[Action]()
        while lines and (call := parse_action(lines[-1])).action_type in self._tools:
            calls.insert(0, call)
            lines.pop()
        rendered = self._render([_ASKED, _turn(calls, "\n".join(lines))]) if calls else None
        if rendered is None or not (rendered.startswith(self._before) and rendered.endswith(self._after)):
            return action
        text = rendered[len(self._before) : len(rendered) - len(self._after)].strip()
        back = [parse_action(line) for line in self.actions(text)]
        same = [(one.action_type, one.arguments) for one in back] == [(one.action_type, one.arguments) for one in calls]
        return text if same else action


def _turn(calls: Sequence[Action], words: str = "") -> Message:
    parts: list[Part] = [TextPart(text=words)] if words else []
    for number, call in enumerate(calls):
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        parts.append(ToolCall(name=call.action_type, arguments=arguments, id=f"call{number:05d}"))
    return Message(role="assistant", content=tuple(parts))
