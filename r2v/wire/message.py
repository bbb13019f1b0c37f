"""Messages, their parts and tools: the structure that all wire formats share.

A message's content is text, or parts: text, a tool call, a tool's result, a thought, a refusal, or an unread part such
as an image. `Message.text` is the rendering for a small policy, in which actions are stored and replayed. `extra` holds
fields that R2V does not read, unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

Role = Literal["system", "developer", "user", "assistant", "tool"]
Extra = dict[str, Any]


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPart:
    """Text of a message."""

    text: str
    extra: Extra = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ThinkingPart:
    """A model's thought. `opaque`: a signature or an encrypted thought, which its provider must get back unaltered."""

    text: str = ""
    opaque: str | None = None
    extra: Extra = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusalPart:
    """A model's refusal to answer."""

    text: str
    extra: Extra = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call of a tool. `arguments`: the model's text; JSON, possibly malformed, for a function, free text for a custom
    tool (`custom`)."""

    name: str
    arguments: str = ""
    id: str = ""
    custom: bool = False
    extra: Extra = field(default_factory=dict, hash=False)

    @property
    def line(self) -> str:
        """The call as an action, one line of JSON: `{"tool":"<name>","<argument>":<value>}`. Arguments that are no
        object, or include one named `tool`, are nested under `arguments`."""
        parsed: Any = self.arguments
        for _ in range(0 if self.custom else 2):  # some servers encode arguments twice
            parsed = decoded(parsed) if isinstance(parsed, str) else parsed
        if parsed is None:
            parsed = {}
        flat = parsed if isinstance(parsed, dict) and "tool" not in parsed else {"arguments": parsed}
        return json.dumps({"tool": self.name, **flat}, ensure_ascii=False, separators=(",", ":"))

    @property
    def object(self) -> dict[str, Any]:
        """The arguments as an object, as some formats require; others become its field `arguments`."""
        parsed = decoded(self.arguments)
        return parsed if isinstance(parsed, dict) else {"arguments": parsed}


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownPart:
    """A part of a kind that R2V does not read, such as an image, unchanged."""

    value: Extra = field(hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """Result of a call."""

    call_id: str
    content: str | tuple[TextPart | UnknownPart, ...] = ""
    is_error: bool = False
    custom: bool = False
    extra: Extra = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """Text of the result."""
        return _joined(self.content)


Part = TextPart | ThinkingPart | RefusalPart | ToolCall | ToolResult | UnknownPart


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn of a conversation, or one item of a turn in formats that list items."""

    role: Role
    content: str | tuple[Part, ...]
    extra: Extra = field(default_factory=dict, hash=False)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts of the content; a plain text is one part."""
        return (TextPart(text=self.content),) if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """Calls as lines if there are any, else the text, without thoughts."""
        return self.content if isinstance(self.content, str) else _joined(self.calls or self.content)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Tool calls of the message."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def plain(self) -> Message:
        """The message without thoughts, which only their provider accepts, and without unread fields."""
        parts = (part for part in self.parts if not isinstance(part, ThinkingPart))
        bare = tuple(part if isinstance(part, UnknownPart) else replace(part, extra={}) for part in parts)
        return Message(role=self.role, content=self.content if isinstance(self.content, str) else bare)

    @property
    def thought(self) -> str:
        """Text of the thoughts."""
        return "\n".join(part.text for part in self.parts if isinstance(part, ThinkingPart) and part.text)


def _joined(content: str | tuple[Part, ...]) -> str:
    if isinstance(content, str):
        return content
    lines = []
    for part in content:
        if isinstance(part, ToolCall):
            lines.append(part.line)
        elif isinstance(part, (TextPart, RefusalPart, ToolResult)) and part.text:
            lines.append(part.text)
    return "\n".join(lines)


_KINDS: dict[str, type[Part]] = {
    "text": TextPart,
    "thinking": ThinkingPart,
    "refusal": RefusalPart,
    "call": ToolCall,
    "result": ToolResult,
    "unknown": UnknownPart,
}
"""Name in a file -> part."""


def to_json(message: Message) -> dict[str, Any]:
    """Return a message for R2V's files, independent of wire formats: `{"role": ..., "content": text or parts}`. Each
    part has its kind under `part`; empty fields are omitted."""
    more = {"extra": dict(message.extra)} if message.extra else {}
    content = message.content
    return {
        "role": message.role,
        "content": content if isinstance(content, str) else list(map(_part_json, content)),
    } | more


def _part_json(part: Part) -> dict[str, Any]:
    kind = next(word for word, cls in _KINDS.items() if isinstance(part, cls))
    values = {item.name: getattr(part, item.name) for item in fields(part)}
    if isinstance(values.get("content"), tuple):
        values["content"] = [_part_json(inner) for inner in values["content"]]
    return {"part": kind} | {name: value for name, value in values.items() if value or name in ("text", "name")}


def from_json(value: dict[str, Any]) -> Message:
    """Return the message of `to_json`. Raises KeyError, TypeError or ValueError for any other value."""
    content = value["content"]
    return Message(
        role=value["role"],
        content=content if isinstance(content, str) else tuple(map(_part_of, content)),
        extra=value.get("extra", {}),
    )


def _part_of(value: dict[str, Any]) -> Any:
    arguments = {name: item for name, item in value.items() if name != "part"}
    if isinstance(arguments.get("content"), list):
        arguments["content"] = tuple(map(_part_of, arguments["content"]))
    return _KINDS[value["part"]](**arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """Function that an agent may call.

    `parameters` is a JSON-schema object. A property may carry `"x-free": true`: any value of its type is correct (the
    wording of a reply, any free technician), so uncertainty about it is harmless.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    extra: Extra = field(default_factory=dict, hash=False)

    @property
    def free_arguments(self) -> frozenset[str]:
        """Names of the arguments whose value does not matter to success."""
        properties = self.parameters.get("properties", {})
        return frozenset(name for name, schema in properties.items() if schema.get("x-free"))


Tool = ToolSpec | UnknownPart
"""A function, or an unread tool of another kind: custom, web search, a namespace of functions."""


def functions_of(tools: Iterable[Tool]) -> tuple[ToolSpec, ...]:
    """Return the functions among the tools, those in namespaces included."""
    flat: list[ToolSpec] = []
    for tool in tools:
        if isinstance(tool, ToolSpec):
            flat.append(tool)
            continue
        for inner in tool.value.get("tools") or ():
            if isinstance(inner, dict) and inner.get("tools"):
                flat += functions_of([UnknownPart(value=inner)])
            elif isinstance(inner, dict) and inner.get("type", "function") == "function" and inner.get("name"):
                described, parameters = inner.get("description"), inner.get("parameters")
                flat.append(
                    ToolSpec(name=inner["name"], description=str(described or ""), parameters=dict(parameters or {}))
                )
    return tuple(flat)


def canonical(item: Any) -> Any:
    """Return an item of a conversation without cache marks, ids and spacing of arguments, which clients change between
    turns; a single text part becomes its text."""
    if isinstance(item, Mapping):
        fields = {name: canonical(value) for name, value in item.items() if name not in ("cache_control", "id")}
        if isinstance(arguments := fields.get("arguments"), str):
            fields["arguments"] = decoded(arguments)
        return fields
    if isinstance(item, Sequence) and not isinstance(item, str):
        parts = [canonical(part) for part in item]
        if len(parts) == 1 and isinstance(parts[0], Mapping) and set(parts[0]) == {"type", "text"}:
            return parts[0]["text"]
        return parts
    return item


def decoded(arguments: str) -> Any:
    """Return the JSON value of a call's arguments; malformed ones unchanged."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


_UNSENDABLE = re.compile("[\\ud800-\\udfff\\x00]")
_PAIR = re.compile("[\\ud800-\\udbff][\\udc00-\\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
STAND_IN = "(nothing)"
"""Replacement of a message without a visible character, which providers refuse."""


def sendable(text: str) -> str:
    """Return the text with surrogate pairs joined, and lone surrogates and NUL replaced."""
    if text.isascii() and "\0" not in text or not _UNSENDABLE.search(text):
        return text
    joined = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
    return _UNSENDABLE.sub(REPLACEMENT, joined)


def sendable_json(value: Any) -> Any:
    """Return a JSON value with all texts, names of fields included, made sendable."""
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, dict):
        return {sendable(name): sendable_json(item) for name, item in value.items()}
    return [sendable_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def visible(text: str) -> str:
    """Return the sendable text; `STAND_IN` for one without a visible character."""
    return sendable(text) if text.strip() else STAND_IN
