"""Answer functions of the emulated models: functions from a request to a text.

A function is named by its dotted path `module:function` or by a short name: `echo` repeats the end of the newest
message; `game` plays the Secret Game and sometimes reveals its secret; `desk` is the bundled benchmark's expert, for
`r2v collect` against the emulator, and `swebench` that of the bundled instances; `judge` scores actions for the
verifier, and `game_judge` the game's conversations. All depend on the request's body alone: the same body gets the
same answer, in a batch or not. The emulator itself imports no environment.

Several functions are called in turn until one does not return None: `judge desk` is a teacher and its judge.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from r2v.extensions import load_function
from r2v.llm.scripted import count_tokens
from r2v.randomness import Key, generator, uniform
from r2v.wire.message import Message


@dataclass(frozen=True, kw_only=True)
class EmulatedRequest:
    """A request as the model sees it. `body` is the provider's JSON; `messages` has one message per text block, the
    system prompt first."""

    provider: str
    model: str
    messages: tuple[Message, ...]
    custom_id: str | None
    draw: int = 0
    """Index of the sample among those that the request asks for."""
    body: dict[str, Any] = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """Return the hash of the body without its metadata, independent of the order of keys."""
        return body_sha256(self.body)

    @cached_property
    def tokens_in(self) -> int:
        """Return the tokens of all messages."""
        return sum(count_tokens(message.text) for message in self.messages)

    @property
    def key(self) -> Key:
        """Return the key of random draws, a function of the conversation, the body's seed and the sample."""
        messages = [[message.role, message.text] for message in self.messages]
        text = json.dumps([messages, self.body.get("seed")], ensure_ascii=False)
        return (hashlib.sha256(text.encode()).hexdigest(), self.draw)


Answer = Callable[[EmulatedRequest], str | None]
"""Function from a request to a text; None leaves the request to another answer function."""


def body_sha256(body: dict[str, Any]) -> str:
    """Return the SHA-256 of a body as canonical JSON, without its metadata."""
    content = {key: value for key, value in body.items() if key != "metadata"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def echo(request: EmulatedRequest) -> str:
    """Return the newest message's last 60 characters and a hash of the body and the sample."""
    return f"{request.messages[-1].text[-60:]} / {request.sha256[:8]}.{request.draw}"


REVEALS = 0.3
"""Share of the emulated player's messages that reveal its own secret."""

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


def game(request: EmulatedRequest) -> str:
    """Return a message of the Secret Game; a share `REVEALS` of them reveals the secret in the prompts."""
    system_prompts = "\n".join(message.text for message in request.messages if message.role == "system")
    secret = _SECRET.search(system_prompts or request.messages[0].text)
    if secret is not None and uniform("game", "reveal", *request.key) < REVEALS:
        return f"All right: my secret is {secret['quoted'] or secret['bare']}"
    return generator("game", "talk", *request.key).choice(_SMALL_TALK)


ANSWER_PATHS = {
    "echo": "r2v.emulator.answers:echo",
    "desk": "r2v.envs.desk.emulated:answer",
    "swebench": "r2v.envs.swe.emulated:answer",
    "game": "r2v.emulator.answers:game",
    "judge": "r2v.verifier.emulated:answer",
    "game_judge": "r2v.game.emulated:answer",
}
"""Dotted path by short name. Any other name is itself a dotted path `module:function`."""


def load_answer(spec: str) -> Answer:
    """Return the answer function of a short name or a dotted path. Raises UsageError."""
    answer: Answer = load_function("answer", ANSWER_PATHS.get(spec, spec), ANSWER_PATHS, ("request",))
    return answer


def first_of(answers: Sequence[Answer | str]) -> Answer:
    """Return a function that calls these in turn and returns the first text. Raises UsageError if one cannot be
    loaded."""
    loaded = [load_answer(answer) if isinstance(answer, str) else answer for answer in answers]

    def answer(request: EmulatedRequest) -> str | None:
        return next((text for function in loaded if (text := function(request)) is not None), None)

    return loaded[0] if len(loaded) == 1 else answer
