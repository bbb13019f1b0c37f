"""Signatures: the model's own thoughts are accepted back, foreign ones are refused as the providers refuse them."""

from __future__ import annotations

from typing import Any

import pytest

from r2v.emulator.signatures import INVALID_CONTENT, refused_thought, sign

OWN, OTHER = sign("m", "abc"), sign("n", "abc")


def messages(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": list(blocks)}]
    return {"messages": [*turns, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}], **more}


def thought(signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "hm", "signature": signature}


CALL = {"type": "tool_use", "id": "t", "name": "ls", "input": {}}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.mark.parametrize("body,refused", [
    (messages(thought(OWN), CALL), None),
    (messages(thought(OTHER), CALL), "messages.1.content.0: Invalid `signature`"),
    (messages(thought(""), CALL), "Invalid `signature`"),
    (messages(CALL), None),
    (messages(CALL, **BUDGET), "messages.1.content.0.type: Expected `thinking`"),
    (messages(thought(OWN), CALL, **BUDGET), None),
    (messages(CALL, thinking={"type": "adaptive"}), None),
    ({"messages": [{"role": "user", "content": "x"}], **BUDGET}, None),
])  # fmt: skip
def test_messages_refuses_by_the_published_rules(body: dict[str, Any], refused: str | None) -> None:
    found = refused_thought("/v1/messages", "m", body)
    assert (found is None) == (refused is None) and (refused is None or refused in str(found))


def test_responses_refuses_what_another_model_encrypted() -> None:
    items = [{"type": "reasoning", "encrypted_content": OWN}, {"role": "user", "content": "x"}]
    assert refused_thought("/v1/responses", "m", {"input": items}) is None
    found = refused_thought("/v1/responses", "n", {"input": items})
    assert found is not None and found.code == INVALID_CONTENT
    assert refused_thought("/v1/responses", "m", {"input": "x"}) is None
    assert refused_thought("/v1/chat/completions", "m", messages(thought(OTHER))) is None
