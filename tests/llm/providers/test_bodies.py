"""Requests as chat completions, responses and messages: text or native calls."""

from __future__ import annotations

import json
from dataclasses import replace

from r2v.llm.providers.bodies import (
    CONTINUES,
    action_schema,
    chat_body,
    has_neighbours,
    message_body,
    parameters_of,
    response_body,
)
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider_requests import make_request
from r2v.llm.providers.registry.shape import RequestShape
from r2v.llm.types import Request
from r2v.wire.message import STAND_IN, Message, ThinkingPart, ToolCall, ToolSpec

CALLS, CALL_OUTPUT = "tool_calls", "function_call_output"

RATE = Rate(model="m", input=1.0, output=2.0, batch=0.5, cached=0.1, write_5m=1.0, write_1h=1.0)
REQUEST = Request(
    messages=(Message(role="system", content="be brief"), Message(role="user", content="hi")),
    key=("k",),
    tools=(ToolSpec(name="done", description="End."),),
    max_tokens=40,
    temperature=0.5,
)
SHAPE = RequestShape(temperature=False, effort="low", thinking_tokens=100, actions="tools", responses=True)


def test_a_response_holds_what_a_chat_completion_does() -> None:
    body = response_body(replace(RATE, shape=SHAPE), REQUEST)
    assert (body["max_output_tokens"], body["reasoning"], body["store"]) == (140, {"effort": "low"}, False)
    assert body["input"] == [{"role": "user", "content": "hi"}] and body["instructions"].startswith("be brief")
    assert body["tools"][0]["name"] == "done" and body["tool_choice"] == "required" and "temperature" not in body
    chat = chat_body(replace(RATE, shape=replace(SHAPE, temperature=True, limit="max_completion_tokens")), REQUEST)
    assert (chat["max_completion_tokens"], chat["reasoning_effort"], chat["temperature"]) == (140, "low", 0.5)
    assert chat["tools"][0]["function"]["name"] == "done" and chat["parallel_tool_calls"] is False


def test_the_worst_case_counts_thoughts_and_tools() -> None:
    plain = make_request("0123abcd", REQUEST, chat_body(RATE, replace(REQUEST, tools=())))
    thinking = make_request("0123abcd", REQUEST, response_body(replace(RATE, shape=SHAPE), REQUEST))
    assert (plain.max_tokens, thinking.max_tokens) == (40, 140) and thinking.tokens_in > plain.tokens_in + 1000


def test_a_native_history_holds_calls_their_results_and_the_models_own_thoughts() -> None:
    said = Message(
        role="assistant",
        content=(ThinkingPart(text="hm", opaque="sig"), ToolCall(name="look", arguments='{"at": 1}', id="toolu_1")),
    )
    later = Message(role="assistant", content=(ToolCall(name="done", id="toolu_2"),), extra={CONTINUES: True})
    history = (
        Message(role="user", content="the goal"),
        Message(role="tool", content="first page"),
        said,
        Message(role="tool", content="a page"),
        later,
        Message(role="tool", content=" \n "),
        Message(role="assistant", content='{"tool":"look","at":2}'),
        Message(role="tool", content="another page"),
    )
    request = replace(REQUEST, messages=history)
    rate = replace(RATE, shape=replace(SHAPE, responses=False))
    anthropic = message_body(rate, request)["messages"]
    assert anthropic[0] == {"role": "user", "content": "the goal\n\nfirst page"}
    assert [block["type"] for block in anthropic[1]["content"]] == ["thinking", "tool_use", "tool_use"]
    assert anthropic[1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "sig"}
    results = [(block["tool_use_id"], block["content"]) for block in anthropic[2]["content"]]
    assert results == [("toolu_1", "a page"), ("toolu_2", STAND_IN)], "results of one turn stand in one message"
    assert anthropic[3]["content"][0]["input"] == {"at": 2} and len(anthropic[3]["content"][0]["id"]) == 9
    chat = chat_body(rate, request)["messages"]
    assert [message["role"] for message in chat[1:]] == ["user", "assistant", "tool", "tool", "assistant", "tool"]
    assert chat[2]["reasoning_content"] == "hm" and [call["id"] for call in chat[2][CALLS]] == ["toolu_1", "toolu_2"]
    items = response_body(rate, request)["input"]
    kinds = [item.get("type", item.get("role")) for item in items]
    assert kinds.count(CALL_OUTPUT) == 3 and kinds[0] == "user" and "reasoning" in kinds


def test_neighbours_are_joined_where_a_server_wants_both_sides_in_turn() -> None:
    history = (Message(role="user", content="goal"), Message(role="tool", content="page \ud83d"), *REQUEST.messages[:0])
    request = replace(REQUEST, messages=history)
    assert has_neighbours(request, RATE.shape) and not has_neighbours(request, replace(RATE.shape, actions="tools"))
    apart, joined = (chat_body(replace(RATE, shape=RequestShape(in_turn=turn)), request) for turn in (False, True))
    assert [message["content"] for message in apart["messages"][1:]] == ["goal", "page \ufffd"]
    assert [message["content"] for message in joined["messages"][1:]] == ["goal\n\npage \ufffd"]


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
