"""Messages, their parts and tools: the structure that all wire formats share.

A message's content is text, or parts: text, a tool call, a tool's result, a thought, a refusal, or a part of a kind
that R2V does not read, such as an image. `Message.text` is one rendering of it: the form in which a small policy reads
a conversation, in which actions are stored and replayed. `extra` holds the fields that R2V does not read, as they came.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

Role = Literal["system", "developer", "user", "assistant", "tool"]
Extra = dict[str, Any]


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPart:
    """Words."""

    text: str
    extra: Extra = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ThinkingPart:
    """A model's thought. `opaque` is what only its maker can read and must get back unaltered: a signature, or the
    encrypted thought itself."""

    text: str = ""
    opaque: str | None = None
    extra: Extra = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusalPart:
    """A model's words for not answering."""

    text: str
    extra: Extra = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call of a tool. `arguments` is text as the model wrote it: JSON, which may be broken, of a function; anything
    of a custom tool (`custom`), which takes free text."""

    name: str
    arguments: str = ""
    id: str = ""
    custom: bool = False
    extra: Extra = field(default_factory=dict, hash=False)

    @property
    def line(self) -> str:
        """The call as an action, one line of JSON: `{"tool":"<name>","<argument>":<value>}`. Arguments that are no
        object, or have one named `tool`, stay together under `arguments`."""
        parsed: Any = self.arguments
        for _ in range(2):  # some servers encode them twice
            try:
                parsed = json.loads(parsed or "{}") if isinstance(parsed, str) and not self.custom else parsed
            except (ValueError, RecursionError):
                break
        if parsed is None:
            parsed = {}
        flat = parsed if isinstance(parsed, dict) and "tool" not in parsed else {"arguments": parsed}
        return json.dumps({"tool": self.name, **flat}, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownPart:
    """A part of a kind that R2V does not read, an image among them, as it came."""

    value: Extra = field(hash=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """The result of a call."""

    call_id: str
    content: str | tuple[TextPart | UnknownPart, ...] = ""
    is_error: bool = False
    custom: bool = False
    extra: Extra = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """Its words."""
        return _joined(self.content)


Part = TextPart | ThinkingPart | RefusalPart | ToolCall | ToolResult | UnknownPart


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One turn of a conversation, or a part of one: formats that list items have a message for each."""

    role: Role
    content: str | tuple[Part, ...]
    extra: Extra = field(default_factory=dict, hash=False)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its parts; of a plain text, one."""
        return (TextPart(text=self.content),) if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """Its calls as lines, where it has any, else its words; thoughts are neither."""
        return self.content if isinstance(self.content, str) else _joined(self.calls or self.content)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in it."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def plain(self) -> Message:
        """It without thoughts, which are of use to their maker alone, and without fields that R2V does not read."""
        kept = (part for part in self.parts if not isinstance(part, ThinkingPart))
        bare = tuple(part if isinstance(part, UnknownPart) else replace(part, extra={}) for part in kept)
        return Message(role=self.role, content=self.content if isinstance(self.content, str) else bare)

    @property
    def thought(self) -> str:
        """The words of its thoughts."""
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
"""Word in a file -> part."""


def to_json(message: Message) -> dict[str, Any]:
    """A message as R2V's files hold it, whichever format it came in: `{"role": ..., "content": text or parts}`, each
    part with its kind under `part` and the fields that are not empty."""
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
    """Inverse of `to_json`. Raises KeyError, TypeError or ValueError for what it never wrote."""
    content = value["content"]
    return Message(
        role=value["role"],
        content=content if isinstance(content, str) else tuple(map(_part_of, content)),
        extra=value.get("extra", {}),
    )


def _part_of(value: dict[str, Any]) -> Any:
    given = {name: item for name, item in value.items() if name != "part"}
    if isinstance(given.get("content"), list):
        given["content"] = tuple(map(_part_of, given["content"]))
    return _KINDS[value["part"]](**given)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """A tool an agent may call, as a JSON schema.

    `parameters` is a JSON-schema object. A property may carry `"x-free": true`: any value of its type serves
    (the wording of a reply, any technician who is free), so doubt about it is harmless.
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
"""A function, or a tool of another kind as it came: custom, web search, a namespace of functions."""


def functions_of(tools: Iterable[Tool]) -> tuple[ToolSpec, ...]:
    """The functions among these tools, those of namespaces too."""
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
