"""The schema of strict structured output."""

from __future__ import annotations

import json

from r2v.llm.providers.action_schema import action_schema, parameters_of
from r2v.wire.message import ToolSpec

TOOL = ToolSpec(
    name="reply",
    description="Answer a ticket.",
    parameters={
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "text": {"type": "string", "x-free": True},
            "to": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        },
        "required": ["id"],
    },
)


def test_the_schema_closes_every_object_and_lets_optional_arguments_be_null() -> None:
    assert "x-free" not in json.dumps(parameters_of(TOOL))
    (call,) = action_schema([TOOL])["properties"]["action"]["anyOf"]
    assert call["required"] == ["tool", "id", "text", "to"] and call["additionalProperties"] is False
    assert call["properties"]["tool"]["enum"] == ["reply"] and call["properties"]["id"] == {"type": "string"}
    assert call["properties"]["text"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    inner = call["properties"]["to"]["anyOf"][0]["items"]
    assert inner["required"] == ["name"] and inner["additionalProperties"] is False
