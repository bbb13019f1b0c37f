"""Thoughts in a request: recognition of a provider's refusal of them, and the request without them.

Only the model and the account that made a signature or an encrypted thought accept it. A request that shows it to
another is refused; the same request without the thoughts is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from r2v.wire.errors import WireError

_CODES = {"invalid_encrypted_content", "invalid_signature", "thinking_signature_invalid"}
_WORDS = ("signature", "encrypted_content", "encrypted content")
_BLOCKS = ("thinking", "redacted_thinking")


def names_thoughts(wire: str, error: WireError) -> bool:
    """True if an error says that a signature or an encrypted thought is invalid. Anthropic has no code for it."""
    if error.status is None or not 400 <= error.status < 500:
        return False
    if _CODES & set(error.codes):
        return True
    text = error.message.lower()
    return error.status == 400 and "invalid" in text and any(word in text for word in _WORDS) and wire != "chat"


def without_thoughts(wire: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's body without the thoughts in its conversation."""
    if wire == "responses":
        items = [_item(item) for item in body.get("input") or () if not _is_empty_reasoning(item)]
        return {**body, "input": items}
    return {**body, "messages": [_message(message) for message in body.get("messages") or ()]}


def _is_empty_reasoning(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("type") == "reasoning" and not item.get("content")


def _item(item: Any) -> Any:
    if isinstance(item, Mapping) and item.get("type") == "reasoning":
        return {name: value for name, value in item.items() if name != "encrypted_content"}
    return item


def _message(message: Any) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    blocks = [block for block in content if not (isinstance(block, Mapping) and block.get("type") in _BLOCKS)]
    return {**message, "content": blocks or [{"type": "text", "text": "(thought)"}]}
