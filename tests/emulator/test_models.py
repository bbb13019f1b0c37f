"""The emulator refuses the same as today's APIs: retired and unknown names, parameters that a model does not take."""

from __future__ import annotations

import typing
from datetime import date
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from r2v.emulator import EmulatedRequest, Emulator
from r2v.emulator.models import PARAMETERS, refusal_of, thoughts

from .clients import anthropic_client, openai_client

DAY = date(2026, 11, 23)
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
LIVING = ("gpt-6-luna", "gpt-6.1-sol", "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5", "claude-haiku-4-5")


def question(model: str, path: str, **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "hello"}]
    limit = {CHAT: "max_completion_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}[path]
    body = {"model": model, "input" if path == RESPONSES else "messages": turns, limit: 1000} | more
    return {key: value for key, value in body.items() if value is not None}


def refused(model: str, path: str, **more: Any) -> tuple[int, str] | None:
    provider = "anthropic" if path == MESSAGES else "openai"
    found = refusal_of(provider, path, question(model, path, **more), DAY)
    return None if found is None else (found.status, str(found))


@pytest.mark.parametrize(
    ("path", "params"),
    [
        (CHAT, completion_create_params.CompletionCreateParamsBase),
        (RESPONSES, response_create_params.ResponseCreateParamsBase),
        (MESSAGES, message_create_params.MessageCreateParamsBase),
    ],
)
def test_every_key_that_is_let_through_is_one_that_the_official_client_sends(path: str, params: type) -> None:
    sent = set(typing.get_type_hints(params)) | {"stream"}
    if path == MESSAGES:
        sent |= {"temperature", "top_p", "top_k"}  # Anthropic's client no longer names them; its older models take them
    assert PARAMETERS[path] <= sent, PARAMETERS[path] - sent


@pytest.mark.parametrize(
    ("model", "path", "more", "status", "says"),
    [
        ("gpt-4-turbo", CHAT, {}, 404, "has been deprecated"),
        ("gpt-99", CHAT, {}, 404, "does not exist"),
        ("claude-3-opus-20240229", MESSAGES, {}, 404, "model: claude-3-opus-20240229"),
        ("claude-opus-9", MESSAGES, {}, 404, "model: claude-opus-9"),
        ("gpt-6-luna", CHAT, {"temperature": 0}, 400, "'temperature' is not supported"),
        ("gpt-6.1-sol", RESPONSES, {"temperature": 1}, 400, "'temperature' is not supported"),
        ("gpt-6.1-sol", CHAT, {"reasoning_effort": "none"}, 400, "Supported values are: 'low', 'medium', 'high'"),
        ("gpt-4o", CHAT, {"reasoning_effort": "low"}, 400, "'reasoning_effort' is not supported"),
        ("gpt-6-luna", CHAT, {"max_tokens": 9}, 400, "Use 'max_completion_tokens' instead"),
        ("gpt-6-luna", RESPONSES, {"max_output_tokens": 15}, 400, "Expected a value >= 16"),
        ("gpt-6-luna", CHAT, {"tools": [{}]}, 400, "To use function tools, use /v1/responses"),
        ("gpt-5.2-pro", CHAT, {}, 404, "not a chat model"),
        ("gpt-6-luna", CHAT, {"effort": "low"}, 400, "Unknown parameter: 'effort'."),
        ("claude-opus-5-5", MESSAGES, {"temperature": 1}, 400, "`temperature` is deprecated for this model."),
        ("claude-haiku-5-5", MESSAGES, {"top_p": 0.9}, 400, "`top_p` is deprecated for this model."),
        ("claude-opus-5-5", MESSAGES, {"thinking": {"type": "disabled"}}, 400, "thinking.type.disabled"),
        ("claude-sonnet-5-5", MESSAGES, {"thinking": {"type": "disabled"}}, 400, "thinking.type.disabled"),
        ("claude-opus-4-8", MESSAGES, {"thinking": {"type": "enabled"}}, 400, "thinking.type.enabled"),
        ("claude-haiku-4-5", MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1000}}, 400, "at least 1024"),
        ("claude-haiku-4-5", MESSAGES, {"output_config": {"effort": "low"}}, 400, "does not support the effort"),
        ("claude-sonnet-5-5", MESSAGES, {"tool_choice": {"type": "any"}}, 400, "forced tool use"),
        ("claude-opus-5-5", MESSAGES, {"reasoning_effort": "low"}, 400, "Extra inputs are not permitted"),
    ],
)
def test_what_todays_apis_refuse(model: str, path: str, more: dict[str, Any], status: int, says: str) -> None:
    found = refused(model, path, **more)
    assert found is not None and found[0] == status and says in found[1], found


@pytest.mark.parametrize("model", LIVING)
def test_a_plain_question_to_a_living_model_is_answered(model: str) -> None:
    assert refused(model, MESSAGES if model.startswith("claude") else CHAT) is None


def test_what_is_taken() -> None:
    assert refused("gpt-6-luna", CHAT, temperature=0, reasoning_effort="none") is None
    assert refused("gpt-6-luna", RESPONSES, tools=[{}], reasoning={"effort": "low"}) is None
    assert refused("claude-sonnet-5-5", MESSAGES, thinking={"type": "between_tools"}) is None
    assert refused("claude-haiku-4-5", MESSAGES, temperature=0) is None
    assert refused("our/model-70b", CHAT, temperature=0, anything=1) is None, "a server of one's own"
    tomorrow = question("gpt-7-nova", CHAT)
    assert refusal_of("openai", CHAT, tomorrow, DAY) is not None
    assert refusal_of("openai", CHAT, tomorrow, DAY, ["gpt-7-nova"]) is None


def test_thoughts_are_billed_and_eat_the_limit() -> None:
    """A limit that the thoughts use up leaves no text: it is cut and paid."""
    assert thoughts("openai", "gpt-6-luna", {"reasoning_effort": "none"}) == 0 == thoughts("openai", "gpt-4o", {})
    assert 0 < thoughts("anthropic", "claude-opus-5-5", {"output_config": {"effort": "low"}}) < 300
    with Emulator(answer=lambda request: "a short answer") as emulator:
        tight = {"max_completion_tokens": 300}
        cut = openai_client(emulator).chat.completions.create(**question("gpt-6-luna", CHAT) | tight)
        whole = openai_client(emulator).chat.completions.create(**question("gpt-6-luna", CHAT))
        blocks = anthropic_client(emulator).messages.create(**question("claude-opus-5-5", MESSAGES))
        empty = anthropic_client(emulator).messages.create(**question("claude-opus-5-5", MESSAGES, max_tokens=100))
    assert (cut.choices[0].finish_reason, cut.choices[0].message.content, cut.usage.completion_tokens) == (
        "length",
        "",
        300,
    )
    assert whole.choices[0].message.content == "a short answer"
    assert whole.usage.completion_tokens - whole.usage.completion_tokens_details.reasoning_tokens == 3
    assert [block.type for block in blocks.content] == ["thinking", "text"]
    assert (empty.stop_reason, [block.type for block in empty.content]) == ("max_tokens", ["thinking"])


def test_the_official_clients_see_the_errors_as_theirs() -> None:
    with Emulator() as emulator:
        with pytest.raises(openai.NotFoundError, match="has been deprecated") as raised:
            openai_client(emulator).chat.completions.create(**question("gpt-4-turbo", CHAT))
        assert raised.value.code == "model_not_found"
        with pytest.raises(anthropic.NotFoundError, match="model: claude-3-opus-20240229"):
            anthropic_client(emulator).messages.create(**question("claude-3-opus-20240229", MESSAGES))
        assert emulator.ledger().bills == ()


def test_several_answers_are_asked_in_turn() -> None:
    def only_ping(request: EmulatedRequest) -> str | None:
        return "pong" if request.messages[-1].content == "ping" else None

    with Emulator(answer=[only_ping, "echo"]) as emulator:
        client = openai_client(emulator)
        said = [
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
            for text in ("ping", "other")
        ]
    assert said[0].choices[0].message.content == "pong"
    assert said[1].choices[0].message.content.startswith("other / ")
    with Emulator(answer=[only_ping]) as emulator, pytest.raises(openai.InternalServerError):
        openai_client(emulator).chat.completions.create(model="m", messages=[{"role": "user", "content": "other"}])
