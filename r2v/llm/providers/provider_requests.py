"""One question on its way to a provider: its identity, its body, and the verdict that comes back.

A question is named by its conversation (a digest of the request's key), its turn (how often the model has spoken
before) and the try: `{run8}-{conversation}-{turn}-{try}`, in the narrower of the two providers' alphabets. The
SHA-256 of the body says what was asked; a name that was used once never stands for another body.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from r2v.llm.providers.prices import Tokens
from r2v.llm.types import Message, Request
from r2v.randomness import Key, digest

Question = tuple[str, int, str]
"""(conversation, turn, SHA-256 of the body): what is paid for once."""

Kind = Literal["ok", "retry", "fatal", "account"]
"""What a line says: an answer; nothing yet, ask again; never; or that the account can pay for nothing now."""

_OVERHEAD = 8
"""Tokens that a message's wrapping may add, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What came of an ask. `tokens` None: the provider did not say; `reason` is one line, never dialogue."""

    kind: Kind
    text: str = ""
    cut: bool = False
    """The reply ended at max_tokens."""
    tokens: Tokens | None = None
    reason: str = ""
    billed: bool = True
    """Whether the provider charges for it, as far as one can tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of results. Without a verdict it could not be read; `custom_id` is what can be made out."""

    custom_id: str | None
    verdict: Verdict | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One question, ready to be sent. `tokens_in` bounds its prompt tokens from above."""

    run: str
    conversation: str
    turn: int
    attempt: int
    body: Mapping[str, Any]
    sha256: str
    size: int
    """Bytes of the body."""
    tokens_in: int
    max_tokens: int

    @property
    def custom_id(self) -> str:
        """Its name at the provider."""
        return f"{self.run}-{self.conversation}-{self.turn}-{self.attempt}"

    @property
    def question(self) -> Question:
        """What it asks, whichever try this is."""
        return self.conversation, self.turn, self.sha256

    def again(self, attempt: int) -> Ask:
        """The same question under another try."""
        return replace(self, attempt=attempt)


def make_ask(run: str, request: Request, body: Mapping[str, Any], *, reuse: bool = False) -> Ask:
    """The first try of a request. With `reuse` identical bodies at temperature 0 are one question, whoever asks;
    else a question belongs to its key."""
    wire = canonical(body).encode()
    sha256 = hashlib.sha256(wire).hexdigest()
    key: Key = (sha256,) if reuse and request.temperature == 0 else request.key
    return Ask(
        run=run,
        conversation=digest(*key).hex()[:16],
        turn=turn_of(request.messages),
        attempt=0,
        body=body,
        sha256=sha256,
        size=len(wire),
        tokens_in=most_tokens(body),
        max_tokens=request.max_tokens,
    )


def turn_of(messages: tuple[Message, ...]) -> int:
    """How often the model has spoken before."""
    return sum(message.role == "assistant" for message in messages)


def canonical(body: Mapping[str, Any]) -> str:
    """A body as one line of JSON, keys sorted: its bytes on the wire and under the hash."""
    return json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def read_ask(row: Mapping[str, Any]) -> Ask:
    """The ask that a line of an input file was made of."""
    body = row["body"] if "body" in row else row["params"]
    run, conversation, turn, attempt = row["custom_id"].split("-")
    wire = canonical(body).encode()
    return Ask(
        run=run,
        conversation=conversation,
        turn=int(turn),
        attempt=int(attempt),
        body=body,
        size=len(wire),
        sha256=hashlib.sha256(wire).hexdigest(),
        tokens_in=most_tokens(body),
        max_tokens=body.get("max_tokens") or body["max_completion_tokens"],
    )


def read_asks(path: Path) -> Iterator[Ask]:
    """The asks of an input file, a line each."""
    with path.open("rb") as file:
        for line in file:
            yield read_ask(json.loads(line))


def most_tokens(body: Mapping[str, Any]) -> int:
    """An upper bound of a body's prompt tokens: a token of a byte-level vocabulary is at least one byte."""
    texts = [part for message in body.get("messages", ()) for part in _texts(message["content"])]
    texts += _texts(body.get("system", ""))
    return sum(len(text.encode()) + _OVERHEAD for text in texts) + _OVERHEAD


def _texts(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [block["text"] for block in content]
