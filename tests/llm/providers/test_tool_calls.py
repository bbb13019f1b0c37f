"""Calls as actions, and the schema that strict structured output asks for."""

from __future__ import annotations

import json

from r2v.llm.providers.tool_calls import action_schema, action_text, parameters_of, without_wrapper
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


def test_a_call_is_the_action_that_a_text_would_be() -> None:
    assert json.loads(action_text("reply", {"id": "T-1"})) == {"tool": "reply", "id": "T-1"}
    assert json.loads(action_text("reply", '{"id": "T-1"}')) == {"tool": "reply", "id": "T-1"}
    assert action_text("done", "") == '{"tool": "done"}'
    assert action_text("reply", '{"id": ') == 'reply {"id": ', "broken arguments are no action, and are shown"


def test_the_schema_closes_every_object_and_lets_optional_arguments_be_null() -> None:
    assert "x-free" not in json.dumps(parameters_of(TOOL))
    (call,) = action_schema([TOOL])["properties"]["action"]["anyOf"]
    assert call["required"] == ["tool", "id", "text", "to"] and call["additionalProperties"] is False
    assert call["properties"]["tool"]["enum"] == ["reply"] and call["properties"]["id"] == {"type": "string"}
    assert call["properties"]["text"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    inner = call["properties"]["to"]["anyOf"][0]["items"]
    assert inner["required"] == ["name"] and inner["additionalProperties"] is False


def test_the_action_is_taken_out_of_its_wrapper() -> None:
    wrapped = json.dumps({"action": {"tool": "reply", "id": "T-1", "text": None}})
    assert json.loads(without_wrapper(wrapped)) == {"tool": "reply", "id": "T-1"}
    assert without_wrapper("no JSON") == "no JSON" and without_wrapper('{"tool": "done"}') == '{"tool": "done"}'
