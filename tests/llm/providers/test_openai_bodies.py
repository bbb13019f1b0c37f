"""Requests as chat completions and responses, and what a response says."""

from __future__ import annotations

from dataclasses import replace

from r2v.llm.providers.openai_bodies import chat_body, response_answer, response_body
from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider_requests import make_request
from r2v.llm.providers.registry.shape import RequestShape
from r2v.llm.types import Request
from r2v.wire.message import Message, ToolSpec

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


def test_a_response_is_read_by_its_items() -> None:
    usage = {"input_tokens": 100, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 30}}
    call = {"type": "function_call", "name": "done", "arguments": "{}"}
    text = {"type": "message", "content": [{"type": "output_text", "text": "hello"}]}
    thought = {"type": "reasoning", "summary": []}
    said = response_answer({"output": [thought, call], "usage": usage})
    assert (said.kind, said.text, said.cut) == ("ok", '{"tool": "done"}', False)
    assert said.tokens is not None and (said.tokens.fresh, said.tokens.cached, said.tokens.output) == (70, 30, 20)
    assert response_answer({"output": [text]}).text == "hello"
    cut = {"incomplete_details": {"reason": "max_output_tokens"}, "usage": usage}
    assert response_answer(cut | {"output": [text]}).cut
    empty = response_answer(cut | {"output": [thought]})
    assert (empty.kind, empty.reason) == ("fatal", "max_tokens were used up before any text")
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    assert response_answer({"output": [refusal]}).reason == "refused: no"
