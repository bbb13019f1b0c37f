"""Signatures of thinking blocks, and the providers' refusals of requests with invalid ones.

    opaque = sign("claude-opus-5-5", "3f9c0a12")
    refusal = refused_thought("/v1/messages", "claude-opus-5-5", body)

Rules, each from a public thread:

- Messages: a thinking block whose signature is not this model's is invalid (router-for-me/CLIProxyAPI#1584, #2172).
- Messages, thinking budget: the last turn of an open tool loop must begin with a thought (QwenLM/qwen-code#6893).
- Responses: encrypted content that is not this model's cannot be verified (maximhq/bifrost#5892).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from r2v.emulator.bodies import ApiError

INVALID_CONTENT = "invalid_encrypted_content"


def sign(model: str, name: str) -> str:
    """Return a model's signature of a thought."""
    return f"{name}.{_check(model, name)}"


def _check(model: str, name: str) -> str:
    return hashlib.blake2b(f"{model} {name}".encode(), digest_size=8).hexdigest()


def _is_own(model: str, signature: object) -> bool:
    name, dot, check = str(signature).rpartition(".")
    return bool(dot) and check == _check(model, name)


def refused_thought(path: str, model: str, body: Mapping[str, Any]) -> ApiError | None:
    """Return the refusal of a request, None if its thoughts are valid."""
    if path.endswith("/responses"):
        items = body.get("input")
        for item in items if isinstance(items, list) else ():
            content = item.get("encrypted_content") if isinstance(item, Mapping) else None
            if content is not None and not _is_own(model, content):
                return ApiError(400, "The encrypted content could not be verified.", code=INVALID_CONTENT)
        return None
    if not path.endswith("/messages"):
        return None
    for where, block in _blocks(body):
        if block.get("type") == "thinking" and not _is_own(model, block.get("signature")):
            return ApiError(400, f"{where}: Invalid `signature` in `thinking` block")
    return _interrupted(body)


def _interrupted(body: Mapping[str, Any]) -> ApiError | None:
    """Return the refusal of a tool loop whose last turn lacks the thought required by a thinking budget."""
    messages: list[Any] = body.get("messages") or []
    if (body.get("thinking") or {}).get("type") != "enabled" or len(messages) < 2:
        return None
    newest, turn = messages[-1].get("content"), messages[-2]
    results = isinstance(newest, list) and any(block.get("type") == "tool_result" for block in newest)
    content: Any = turn.get("content")
    first = content[0].get("type") if isinstance(content, list) and content else "text"
    if turn.get("role") == "assistant" and results and first not in ("thinking", "redacted_thinking"):
        where = f"messages.{len(messages) - 2}.content.0.type"
        return ApiError(400, f"{where}: Expected `thinking` or `redacted_thinking`, but found `{first}`")
    return None


def _blocks(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, message in enumerate(body.get("messages") or ()):
        content = message.get("content") if isinstance(message, Mapping) else None
        for index, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, Mapping):
                yield f"messages.{number}.content.{index}", block
