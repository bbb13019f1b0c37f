"""Check of tool declarations: names, JSON schemas, and sample calls generated from them."""

from __future__ import annotations

import json
import random
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from r2v.data.action import parse_action
from r2v.envs.check.findings import CheckFindings
from r2v.envs.guard import tools_problem
from r2v.wire.message import ToolSpec

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
"""Python type by JSON schema type."""
_SAMPLES: dict[str, Any] = {"string": "x", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}


def check_tools(answer: Any, findings: CheckFindings) -> tuple[ToolSpec, ...]:
    """Return the tools of a world; add faults for names and schemas that providers reject."""
    if findings.fault(tools_problem(answer)):
        return ()
    tools: tuple[ToolSpec, ...] = tuple(answer)
    if not tools:
        findings.note("tool_specs gives no tool: a model is told nothing of what it can do")
    for name, count in Counter(tool.name for tool in tools).items():
        if count > 1:
            findings.fault(f"tool_specs names {name} {count} times")
    for tool in tools:
        _check_tool(tool, findings)
    return tools


def _check_tool(tool: ToolSpec, findings: CheckFindings) -> None:
    if not isinstance(tool.name, str) or not tool.name.replace("-", "_").isidentifier() or len(tool.name) > 64:
        findings.fault(f"tool {tool.name!r:.60}: providers take names of letters, digits, _ and -, at most 64 of them")
    if not isinstance(tool.description, str) or not tool.description.strip():
        findings.note(f"tool {tool.name}: has no description, which is all that a model knows of it")
    try:
        json.dumps(tool.parameters, allow_nan=False)
    except (TypeError, ValueError) as error:
        findings.fault(f"tool {tool.name}: parameters are no JSON ({error})")
        return
    schema = tool.parameters
    if schema and schema.get("type", "object") != "object":
        findings.fault(f"tool {tool.name}: parameters are of type {schema['type']!r:.40}; expected object")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(property, dict) for property in properties.values()):
        findings.fault(f"tool {tool.name}: properties are not a JSON schema each")
        return
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        findings.fault(f"tool {tool.name}: required is not a list of names")
        return
    for name in required:
        if name not in properties:
            findings.fault(f"tool {tool.name}: requires {name!r:.40}, which its properties do not have")
    for name, property in properties.items():
        if (kind := property.get("type", "string")) not in _TYPES and not isinstance(kind, list):
            findings.fault(f"tool {tool.name}: {name} is of type {kind!r:.40}; JSON schema has {', '.join(_TYPES)}")


def call_problem(action: str, tools: Sequence[ToolSpec]) -> str | None:
    """Return the schema violation of a tool call; None if it is valid or the action is not a tool call."""
    call = parse_action(action)
    if not call.action_type:
        return None
    named = {tool.name: tool for tool in tools}
    if call.action_type not in named:
        return f"calls {call.action_type!r:.40}, which tool_specs does not have"
    schema = named[call.action_type].parameters
    if lacking := [name for name in schema.get("required", []) if name not in call.arguments]:
        return f"calls {call.action_type} without {', '.join(lacking)}"
    for name, value in call.arguments.items():
        if problem := _value_problem(value, schema.get("properties", {}).get(name)):
            return f"calls {call.action_type} with {name} {problem}"
        if schema.get("additionalProperties") is False and name not in schema.get("properties", {}):
            return f"calls {call.action_type} with {name!r:.40}, which its schema does not have"
    return None


def _value_problem(value: Any, schema: Any) -> str | None:
    """Return an argument's violation of its schema's `type` or `enum`; None without one."""
    if not isinstance(schema, dict):
        return None
    if isinstance(choices := schema.get("enum"), list) and value not in choices:
        return f"{value!r:.40}, which is none of {choices!r:.80}"
    kinds = schema.get("type", [])
    allowed = [_TYPES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind in _TYPES]
    if not allowed or any(isinstance(value, kind) for kind in allowed) and not _is_truth(value, kinds):
        return None
    return f"{value!r:.40}, which is no {kinds}"


def _is_truth(value: Any, kinds: Any) -> bool:
    """True for a Boolean where the schema asks for none; isinstance counts True as an int."""
    return isinstance(value, bool) and "boolean" not in kinds


def sample_call(tool: ToolSpec) -> str:
    """Return a call of a tool with arguments of the right types."""
    return _call(tool, {name: _sample(schema) for name, schema in _arguments(tool).items()})


def drawn_call(tool: ToolSpec, draw: random.Random, page: str, unlike: Mapping[str, Any]) -> str:
    """Return a call with drawn arguments of the right types, none equal to its value in `unlike`."""
    return _call(
        tool, {name: _drawn(schema, draw, page, unlike.get(name)) for name, schema in _arguments(tool).items()}
    )


def drawn_text(draw: random.Random) -> str:
    """Return eight drawn letters."""
    return "".join(draw.choices(string.ascii_lowercase, k=8))


def _call(tool: ToolSpec, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"tool": tool.name, **arguments}, separators=(",", ":"))


def _arguments(tool: ToolSpec) -> dict[str, dict[str, Any]]:
    """Return the schemas of the required arguments; of all arguments if the tool does not declare `required`."""
    properties = tool.parameters.get("properties", {})
    names = tool.parameters.get("required", properties)
    return {name: properties[name] for name in names if isinstance(properties.get(name), dict)}


def _drawn(schema: dict[str, Any], draw: random.Random, page: str, unlike: Any) -> Any:
    """Return a random argument that fits the schema and differs from `unlike`: a value of its enum, a digit, true or
    false, or a text: a word of the observation `page`, the value behind a "key: " there, or a made-up word. Where
    `unlike` is a number in a text, so is the argument, because it may then name an object that exists."""
    kind = schema.get("type", "string")
    choices = schema.get("enum") or {"integer": range(10), "number": range(10), "boolean": (False, True)}.get(str(kind))
    if choices is None and kind == "string":
        texts = [*re.findall(r"(?<=: ).+$|\w+", page, re.M), drawn_text(draw)]
        choices = [text for text in texts if unlike is None or text.isdigit() == str(unlike).isdigit()]
    differing = [value for value in choices or () if value != unlike]
    return draw.choice(differing) if differing else _sample(schema)


def _sample(schema: dict[str, Any]) -> Any:
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    kind = schema.get("type", "string")
    return _SAMPLES.get(kind[0] if isinstance(kind, list) and kind else str(kind), "x")
