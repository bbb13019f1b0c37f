"""Desk's expert as an answer function of the provider emulator: `r2v providers emulate --answer desk`."""

from __future__ import annotations

from dataclasses import replace

from r2v.emulator.answers import EmulatedRequest
from r2v.envs.desk.expert import DeskExpert
from r2v.llm.types import Request
from r2v.wire.message import Message


def answer(request: EmulatedRequest) -> str:
    """Return the desk expert's next action, its slips keyed by the request's body; "ok" for a request without a desk
    goal, such as the probe before a run."""
    try:
        return DeskExpert()(Request(messages=_as_history(request.messages), key=request.key))
    except KeyError:
        return "ok"


def _as_history(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the dialogue with roles restored to goal (user), pages (tool) and actions (assistant). Provider requests
    have only user and assistant; the first message may hold both the goal and the first page."""
    dialogue = [message for message in messages if message.role != "system"]
    goal, _, page = dialogue[0].text.partition("\n\n")
    if page:
        dialogue[:1] = [Message(role="user", content=goal), Message(role="tool", content=page)]
    return tuple(
        replace(message, role="user" if i == 0 else "assistant" if message.role == "assistant" else "tool")
        for i, message in enumerate(dialogue)
    )
