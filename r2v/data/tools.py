"""Recorded tools: tools of an agent when its episodes were recorded, stored with the run.

So training needs no environment: the policy's prompt lists the tools of its teacher. An executed run records the tools
of its benchmark, an imported one those of its logs, a run of an earlier version none (None).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r2v.data.schema import from_dict, parse_json
from r2v.errors import InputError
from r2v.storage.files import write_json
from r2v.wire import chat
from r2v.wire.message import ToolSpec, UnknownPart, functions_of

TOOLS_FILE = "tools.json"
"""File of an artifact with the tools in a policy's training prompts."""


@dataclass(frozen=True, kw_only=True)
class RecordedTool:
    """One tool. `parameters`: a JSON-schema object, as in `r2v.wire.message.ToolSpec`."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


Tools = tuple[RecordedTool, ...]


def tool_of_log(schema: Mapping[str, Any]) -> RecordedTool | None:
    """Return a tool defined in a log by OpenAI's function schema, bare or wrapped, or Anthropic's `input_schema`; None
    for other definitions."""
    inner = schema.get("function", schema)
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or "tools" in schema:  # a namespace
        return None
    described, parameters = inner.get("description"), inner.get("parameters", inner.get("input_schema"))
    return RecordedTool(
        name=inner["name"],
        description=described if isinstance(described, str) else "",
        parameters=parameters if isinstance(parameters, dict) else {},
    )


def chat_tools(listed: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return tools of logs, also those in namespaces, in the form of Chat Completions; tools that are no functions are
    unchanged."""
    tools: list[dict[str, Any]] = []
    for schema in listed:
        tool = tool_of_log(schema)
        if tool is not None and "function" not in schema:
            tools.append(chat_tool(tool))
        else:
            functions = functions_of([UnknownPart(value=schema)]) if isinstance(schema.get("tools"), list) else ()
            tools += map(chat.write_tool, functions) if functions else [schema]
    return tuple(tools)


def chat_tool(tool: RecordedTool) -> dict[str, Any]:
    """Return a recorded tool in the form of Chat Completions."""
    return chat.write_tool(ToolSpec(**vars(tool)))


def united(listed: Iterable[RecordedTool]) -> tuple[Tools, tuple[str, ...]]:
    """Return every tool once by its first definition, in order of appearance, and the names with several
    definitions."""
    first: dict[str, RecordedTool] = {}
    several: dict[str, None] = {}
    for tool in listed:
        if first.setdefault(tool.name, tool) != tool:
            several[tool.name] = None
    return tuple(first.values()), tuple(several)


def write_tools(path: Path, tools: Tools) -> None:
    """Write tools as a JSON list."""
    write_json(path, [vars(tool) for tool in tools])


def read_tools(path: Path) -> Tools:
    """Return the tools in a file. Raise InputError if it is not a list of tools."""
    try:
        return from_dict(_ToolList, {"tools": parse_json(path.read_text())}).tools
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a list of tools ({' '.join(str(error).split())[:200]}); restore it") from error


def tools_sha256(tools: Tools) -> str:
    """Return the hex SHA-256 of tools as listed in a prompt: the order of their arguments counts."""
    return hashlib.sha256(json.dumps([vars(tool) for tool in tools]).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class _ToolList:
    tools: tuple[RecordedTool, ...]
