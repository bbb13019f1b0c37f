"""Answers as each endpoint writes them: the official clients read calls and thoughts, whole and in streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from r2v.emulator import Emulator
from tests.emulator.clients import anthropic_client, openai_client

ACTION = '{"tool": "get", "id": "r2", "note": "tür 🎲"}'
ARGUMENTS = {"id": "r2", "note": "tür 🎲"}
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}, "note": {"type": "string"}}}
WORDS = "a plain answer of some words"
THINKS = {"openai": "gpt-6-luna", "anthropic": "claude-sonnet-5-5"}


@pytest.fixture
def emulator() -> Any:
    with Emulator(answer=lambda request: ACTION if request.body.get("tools") else WORDS) as made:
        yield made


@pytest.mark.parametrize("native", [False, True])
def test_chat_completions(native: bool, emulator: Emulator) -> None:
    tools: Any = [{"type": "function", "function": {"name": "get", "parameters": SCHEMA}}] if native else []
    asked: Any = {"model": "lab-model", "messages": [{"role": "user", "content": "go"}]} | (
        {"tools": tools} if tools else {}
    )
    client = openai_client(emulator)
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    assert streamed.usage == whole.usage or streamed.usage.total_tokens == whole.usage.total_tokens
    for said in (whole, streamed):
        choice = said.choices[0]
        if native:
            (call,) = choice.message.tool_calls or ()
            assert (call.function.name, json.loads(call.function.arguments)) == ("get", ARGUMENTS)
            assert choice.finish_reason == "tool_calls"
        else:
            assert (choice.message.content, choice.finish_reason) == (WORDS, "stop")


@pytest.mark.parametrize("native", [False, True])
def test_responses(native: bool, emulator: Emulator) -> None:
    tools: Any = [{"type": "function", "name": "get", "parameters": SCHEMA, "strict": False}] if native else []
    asked: Any = {"model": THINKS["openai"], "input": "go"} | ({"tools": tools} if native else {})
    client = openai_client(emulator)
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    assert streamed.usage.total_tokens == whole.usage.total_tokens
    for said in (whole, streamed):
        thought, answer = said.output
        assert thought.type == "reasoning" and thought.encrypted_content
        if native:
            assert (answer.name, json.loads(answer.arguments)) == ("get", ARGUMENTS) and answer.call_id
        else:
            assert said.output_text == WORDS


@pytest.mark.parametrize("native", [False, True])
def test_messages(native: bool, emulator: Emulator) -> None:
    tools: Any = [{"name": "get", "input_schema": SCHEMA}] if native else []
    asked: Any = {"model": THINKS["anthropic"], "max_tokens": 4000, "messages": [{"role": "user", "content": "go"}]}
    asked |= {"thinking": {"type": "adaptive"}} | ({"tools": tools} if native else {})
    client = anthropic_client(emulator)
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_message()
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    for said in (whole, streamed):
        thought, answer = said.content
        assert thought.type == "thinking" and thought.signature
        if native:
            assert (answer.name, answer.input, said.stop_reason) == ("get", ARGUMENTS, "tool_use")
        else:
            assert (answer.text, said.stop_reason) == (WORDS, "end_turn")
