"""Message format: a conversation in the roles that every provider knows, with the tools as the request's shape has it.

Actions are text in R2V, one JSON object on a line, for teacher and student alike, so a small policy can be distilled
from them. A provider may give them as text that the prompt asks for, as JSON that a schema holds to, or as native tool
calls (`r2v.llm.providers.tool_calls`): they are the same line in an episode.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from r2v.llm.providers.registry.shape import Actions
from r2v.wire.message import Message, ToolSpec

REPLY_FORMAT = (
    "You act through tools, one call in each reply. Reply with exactly one JSON object on one line "
    'and nothing else: {"tool": "<name>", "<argument>": <value>, ...}'
)
"""What a model is told of how to act."""

JSON_FORMAT = (
    "You act through tools, one call in each reply. Reply with exactly one JSON object "
    'and nothing else: {"action": {"tool": "<name>", "<argument>": <value>, ...}}'
)
"""The same where a schema holds the reply to it, which needs one object around all actions."""
CALL_FORMAT = "You act through tools. Call exactly one tool in each reply."
"""The same where tools are called natively, and described by the request itself."""

_NOTHING = "(nothing)"
"""Stands for an empty message, which providers refuse."""


def system_prompt(messages: Sequence[Message], tools: Sequence[ToolSpec], actions: Actions = "text") -> str:
    """The conversation's own system messages, then how to act, with the tools where they are not called natively.
    Empty where there are neither."""
    parts = [message.text for message in messages if message.role == "system"]
    if tools and actions == "tools":
        parts.append(CALL_FORMAT)
    elif tools:
        schemas = [
            json.dumps(
                {"tool": tool.name, "description": tool.description, "arguments": tool.parameters}, ensure_ascii=False
            )
            for tool in tools
        ]
        reply_format = JSON_FORMAT if actions == "json" else REPLY_FORMAT
        parts.append(f"{reply_format}\nTools:\n" + "\n".join(schemas))
    return "\n\n".join(parts)


def turns(messages: Sequence[Message]) -> list[dict[str, str]]:
    """The conversation without its system messages, in the roles user and assistant; tool results are the user's."""
    return [
        {"role": "assistant" if message.role == "assistant" else "user", "content": message.text or _NOTHING}
        for message in messages
        if message.role != "system"
    ]


def action_of(text: str, tools: Sequence[ToolSpec]) -> str:
    """A completion as an action: without the blanks and the code fence that some models put around it. Where the
    request has no tools, the completion as it is."""
    if not tools:
        return text
    lines = text.strip().splitlines()
    fenced = len(lines) >= 3 and lines[0].startswith("```") and lines[-1] == "```"
    return "\n".join(lines[1:-1] if fenced else lines).strip()
