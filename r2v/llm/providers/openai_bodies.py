"""OpenAI's request bodies: a request as a chat completion or as a response, by the shape of its model's requests; and
the answer of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from r2v.llm.providers.classify import completion_verdict, one_line
from r2v.llm.providers.message_format import system_prompt, turns
from r2v.llm.providers.prices import Rate, TokenCounts
from r2v.llm.providers.provider_requests import RequestVerdict
from r2v.llm.providers.tool_calls import action_schema, action_text, parameters_of
from r2v.llm.types import Request

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"


def chat_body(rate: Rate, request: Request) -> dict[str, Any]:
    """The body of a chat completion."""
    shape = rate.shape
    system = system_prompt(request.messages, request.tools, shape.actions)
    body: dict[str, Any] = {
        "model": rate.model,
        "messages": ([{"role": "system", "content": system}] if system else []) + turns(request.messages),
        shape.limit: shape.limit_of(request.max_tokens),
    }
    if shape.effort is not None:
        body["reasoning_effort"] = shape.effort
    if request.tools and shape.actions == "json":
        schema = {"name": "action", "strict": True, "schema": action_schema(request.tools)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if request.tools and shape.actions == "tools":
        body["tools"] = [{"type": "function", "function": function} for function in _functions(request)]
        body |= _one_call(forced=shape.forced_tool)
    return body | _sampling(rate, request)


def response_body(rate: Rate, request: Request) -> dict[str, Any]:
    """The body of a response. Nothing is stored at the provider: a conversation is sent whole each time."""
    shape = rate.shape
    body: dict[str, Any] = {
        "model": rate.model,
        "input": turns(request.messages),
        "max_output_tokens": shape.limit_of(request.max_tokens),
        "store": False,
    }
    if system := system_prompt(request.messages, request.tools, shape.actions):
        body["instructions"] = system
    if shape.effort is not None:
        body["reasoning"] = {"effort": shape.effort}
    if request.tools and shape.actions == "json":
        schema = {"type": "json_schema", "name": "action", "strict": True, "schema": action_schema(request.tools)}
        body["text"] = {"format": schema}
    if request.tools and shape.actions == "tools":
        body["tools"] = [{"type": "function", "strict": False, **function} for function in _functions(request)]
        body |= _one_call(forced=shape.forced_tool)
    return body | _sampling(rate, request)


def _functions(request: Request) -> list[dict[str, Any]]:
    return [
        {"name": tool.name, "description": tool.description, "parameters": parameters_of(tool)}
        for tool in request.tools
    ]


def _one_call(*, forced: bool) -> dict[str, Any]:
    return {"tool_choice": "required" if forced else "auto", "parallel_tool_calls": False}


def _sampling(rate: Rate, request: Request) -> dict[str, Any]:
    if not rate.shape.temperature:
        return {}
    return {"temperature": request.temperature} | ({"top_p": request.top_p} if request.top_p < 1 else {})


def response_answer(body: Mapping[str, Any]) -> RequestVerdict:
    """The verdict of a response: its text, or its first tool call as an action."""
    tokens = None
    if usage := body.get("usage"):
        details = usage.get("input_tokens_details") or {}
        cached, written = details.get("cached_tokens") or 0, details.get("cache_write_tokens") or 0
        tokens = TokenCounts(
            fresh=usage["input_tokens"] - cached - written,
            cached=cached,
            write_5m=written,
            output=usage["output_tokens"],
        )
    text, called, refusal = "", "", ""
    for item in body.get("output") or ():
        if item.get("type") == "function_call" and not called:
            called = action_text(item["name"], item["arguments"])
        for part in item.get("content") or () if item.get("type") == "message" else ():
            text += part.get("text") or ""
            refusal = refusal or part.get("refusal") or ""
    reason = (body.get("incomplete_details") or {}).get("reason")
    if refusal or reason == "content_filter":
        return RequestVerdict(kind="fatal", reason=one_line(f"refused: {refusal or reason}"), tokens=tokens)
    return completion_verdict(called or text, reason == "max_output_tokens", tokens)
