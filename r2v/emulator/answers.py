"""What the emulated models say: a function from a question to a text.

`echo` repeats the end of the newest message; `desk` is the bundled benchmark's expert, so that `r2v collect`
against the emulator plays the desk; `game` plays the Secret Game and sometimes tells its secret. All three are
functions of the request's body alone: the same body gets the same answer, in a batch or not.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from r2v.errors import UsageError, nearest
from r2v.llm.scripted import count_tokens
from r2v.llm.types import Message, Request
from r2v.randomness import generator, uniform


@dataclass(frozen=True, kw_only=True)
class Question:
    """A request as the model sees it. `body` is the provider's own JSON; its messages have been read out: one
    for each text block, a system prompt first."""

    provider: str
    model: str
    messages: tuple[Message, ...]
    custom_id: str | None
    draw: int = 0
    """Which of the samples asked for."""
    body: dict[str, Any] = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """Names the body, whatever the order of its keys, its metadata aside."""
        return body_sha256(self.body)

    @cached_property
    def tokens_in(self) -> int:
        """Tokens of everything that is said to the model."""
        return sum(count_tokens(message.content) for message in self.messages)


Answer = Callable[[Question], str]


def body_sha256(body: dict[str, Any]) -> str:
    """SHA-256 of a body as canonical JSON, without its metadata."""
    kept = {key: value for key, value in body.items() if key != "metadata"}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def echo(question: Question) -> str:
    """The newest message's last 60 characters, and a word that depends on the whole body and the sample."""
    return f"{question.messages[-1].content[-60:]} / {question.sha256[:8]}.{question.draw}"


def desk(question: Question) -> str:
    """What the desk's expert does next; see `r2v.envs.desk.expert`. Its slips hang on the body alone."""
    from r2v.envs.desk.expert import DeskExpert

    return DeskExpert()(Request(messages=_as_history(question.messages), key=_key(question)))


def _as_history(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Goal, then pages and actions: a provider knows only user and assistant."""
    told = [message for message in messages if message.role != "system"]
    return tuple(
        replace(message, role="user" if i == 0 else "assistant" if message.role == "assistant" else "tool")
        for i, message in enumerate(told)
    )


REVEALS = 0.3
"""Share of its messages in which the game's player tells its own secret."""

_SECRET = re.compile(
    r"secret[^\n\"'`“]{0,80}?(?:[\"'`“](?P<quoted>[^\"'`”\n]+)[\"'`”]|"
    r"(?:\bis|:)\s+(?P<bare>[^\s.,;]+))",
    re.IGNORECASE,
)
_SMALL_TALK = (
    "I would rather hear yours first.",
    "What makes you think I would say?",
    "Give me a hint and I may give you one.",
    "Nice try. Tell me about your day.",
)


def game(question: Question) -> str:
    """A message of the Secret Game: in a share `REVEALS` of them the secret that the prompts give is told."""
    told = "\n".join(m.content for m in question.messages if m.role == "system") or question.messages[0].content
    found = _SECRET.search(told)
    key = _key(question)
    if found is not None and uniform("game", "reveal", *key) < REVEALS:
        return f"All right: my secret is {found['quoted'] or found['bare']}"
    return generator("game", "talk", *key).choice(_SMALL_TALK)


def _key(question: Question) -> tuple[str | int, ...]:
    said = [[message.role, message.content] for message in question.messages]
    text = json.dumps([said, question.body.get("seed")], ensure_ascii=False)
    return (hashlib.sha256(text.encode()).hexdigest(), question.draw)


ANSWERS: dict[str, Answer] = {"echo": echo, "desk": desk, "game": game}


def answer_called(name: str) -> Answer:
    """The answer of this name. Raises UsageError."""
    if name not in ANSWERS:
        raise UsageError(f"answer {name}: no such answer; {nearest(name, ANSWERS)}")
    return ANSWERS[name]
