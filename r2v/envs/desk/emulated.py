"""The desk's expert as an answer of the provider emulator: `r2v providers emulate --answer desk`."""

from __future__ import annotations

from dataclasses import replace

from r2v.emulator.answers import EmulatedRequest
from r2v.envs.desk.expert import DeskExpert
from r2v.llm.types import Request
from r2v.wire.message import Message


def answer(request: EmulatedRequest) -> str:
    """What the desk's expert does next. Its slips depend on the request's body alone. What is no conversation at the
    desk, such as the call before a run, is answered by a word."""
    try:
        return DeskExpert()(Request(messages=_as_history(request.messages), key=request.key))
    except KeyError:
        return "ok"


def _as_history(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Goal, then pages and actions in their roles: a provider knows only user and assistant. A first page may stand
    behind the goal."""
    dialogue = [message for message in messages if message.role != "system"]
    goal, _, page = dialogue[0].text.partition("\n\n")
    if page:
        dialogue[:1] = [Message(role="user", content=goal), Message(role="tool", content=page)]
    return tuple(
        replace(message, role="user" if i == 0 else "assistant" if message.role == "assistant" else "tool")
        for i, message in enumerate(dialogue)
    )
