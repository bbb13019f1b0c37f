"""Action schemas: a request's tools as the JSON schemas that native calls and strict structured output take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from r2v.wire.message import ToolSpec

_EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


def parameters_of(tool: ToolSpec) -> dict[str, Any]:
    """Return the schema of a tool's arguments without R2V's own keywords (`x-free`), which providers refuse."""
    plain: dict[str, Any] = _plain(tool.parameters or _EMPTY)
    return plain


def _plain(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {key: _plain(value) for key, value in schema.items() if not str(key).startswith("x-")}
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema


def action_schema(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """Return the schema of {"action": a call of one of the tools} for strict structured output: every property is
    required and no other is allowed, so an optional argument may be null instead."""
    return _object({"action": {"anyOf": [_call_schema(tool) for tool in tools]}})


def _call_schema(tool: ToolSpec) -> dict[str, Any]:
    schema = parameters_of(tool)
    required = schema.get("required", ())
    properties: dict[str, Any] = {"tool": {"type": "string", "enum": [tool.name]}}
    for name, value in schema.get("properties", {}).items():
        strict = _strict(value)
        # strict output has no optional properties; null is dropped again where the action is read
        properties[name] = strict if name in required else {"anyOf": [strict, {"type": "null"}]}
    return _object(properties)


def _strict(schema: Any) -> Any:
    """Return a schema whose objects are all closed, with every property required."""
    if not isinstance(schema, Mapping):
        return schema
    inner: dict[str, Any] = {
        key: [_strict(item) for item in value] if key == "anyOf" else value for key, value in schema.items()
    }
    if "items" in inner:
        inner["items"] = _strict(schema["items"])
    if inner.get("type") == "object":
        inner |= _object({name: _strict(value) for name, value in schema.get("properties", {}).items()})
    return inner


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
