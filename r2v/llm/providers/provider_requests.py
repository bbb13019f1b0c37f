"""Provider requests: a request to a provider's model, its identity, its body and its verdict.

A request is identified by its conversation (a digest of the request's key), its turn (the number of earlier replies in
the conversation) and the SHA-256 of its body. Each attempt is sent under its own custom_id,
`{run8}-{conversation}-{turn}-{attempt}`, in the narrower of the two providers' alphabets. A custom_id is never used
again for another body, so a late result of an earlier attempt cannot answer a different request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from r2v.llm.types import ModelOutcome, Request
from r2v.randomness import Key, digest
from r2v.wire.exchange import TokenCounts, reply_limit
from r2v.wire.message import Message

RequestIdentity = tuple[str, int, str]
"""(conversation, turn, SHA-256 of the body): the unit that is paid for once, however many attempts it takes."""

VerdictKind = Literal["ok", "retry", "silent", "fatal", "account", "neighbours"]
"""ok: a completion. retry: no answer, to be sent again. silent: an answer without text, billed; sent again a few times.
fatal: refused for good. account: the account or its key is refused, so no request can be answered until its owner
acts. neighbours: refused with two messages of one side in a row; sent again with the two joined."""

_CANONICAL = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode

_OVERHEAD = 8
"""Tokens that a message's wrapping may add, at most."""
_TOOL_PROMPT = 1000
"""Tokens that a provider's own prompt about native tools may add, at most: Anthropic states up to about 800."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestVerdict:
    """The outcome of a provider request. `tokens` None: the provider sent no usage. `reason`: one line for logs and
    errors, never part of a conversation."""

    kind: VerdictKind
    text: str = ""
    cut: bool = False
    """True if the completion ended at max_tokens."""
    tokens: TokenCounts | None = None
    reason: str = ""
    billed: bool = True
    """True if the provider charges for it, as far as its answer shows."""
    outcome: ModelOutcome | None = None
    """The model's failure in a fatal or silent request; None: the answer was lost in transit."""
    own: bool = False
    """True if it is refused for its own content or length, which concerns no other request."""
    reply_id: str | None = None
    """The provider's id of the reply."""
    message: Message | None = None
    """The completion with its native calls and thoughts, if it has calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultLine:
    """One line of a batch's results. `verdict` None: the line could not be parsed; `custom_id` then holds an id that
    was found in its bytes, if any."""

    custom_id: str | None
    verdict: RequestVerdict | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderRequest:
    """One attempt of a request, ready to be sent. `tokens_in` bounds its prompt tokens from above."""

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
    neighbours: bool = False
    """True if two messages of one side follow each other and could be joined."""
    counted_in: int | None = None
    """A tighter bound, from the provider's counts of earlier prompts; None: it has counted none of this text."""

    @property
    def prompt_at_most(self) -> int:
        """The tighter of the two bounds on its prompt tokens."""
        return self.tokens_in if self.counted_in is None else min(self.counted_in, self.tokens_in)

    @property
    def custom_id(self) -> str:
        """The id of this attempt at the provider."""
        return f"{self.run}-{self.conversation}-{self.turn}-{self.attempt}"

    @property
    def identity(self) -> RequestIdentity:
        """The identity of the request, equal for all attempts."""
        return self.conversation, self.turn, self.sha256

    def with_attempt(self, attempt: int) -> ProviderRequest:
        """Return the same request as another attempt."""
        return replace(self, attempt=attempt)


def make_request(run: str, request: Request, body: Mapping[str, Any], *, reuse: bool = False) -> ProviderRequest:
    """Return the first attempt of a request. reuse: identical bodies at temperature 0 are one request, whichever
    conversation sends them; otherwise a request belongs to its key."""
    encoded = canonical_json(body).encode()
    sha256 = hashlib.sha256(encoded).hexdigest()
    key: Key = (sha256,) if reuse and request.temperature == 0 else request.key
    return ProviderRequest(
        run=run,
        conversation=digest(*key).hex()[:16],
        turn=turn_of(request.messages),
        attempt=0,
        body=body,
        sha256=sha256,
        size=len(encoded),
        tokens_in=max_prompt_tokens(body),
        max_tokens=reply_limit(body) or request.max_tokens,
    )


def reply_key(identity: RequestIdentity) -> str:
    """Return 32 hex digits of a request's draw (conversation and turn) and body, the model included."""
    conversation, turn, sha256 = identity
    return hashlib.blake2b(f"{conversation}-{turn}-{sha256}".encode(), digest_size=16).hexdigest()


def turn_of(messages: tuple[Message, ...]) -> int:
    """Return the number of earlier replies of the model."""
    return sum(message.role == "assistant" for message in messages)


def canonical_json(body: Mapping[str, Any]) -> str:
    """Return a body as one line of JSON with sorted keys: the form that is sent and hashed."""
    return _CANONICAL(body)


def read_request(row: Mapping[str, Any]) -> ProviderRequest:
    """Return the request in a line of an input file, OpenAI's (`body`) or Anthropic's (`params`)."""
    body = row["body"] if "body" in row else without_mark(row["params"])
    run, conversation, turn, attempt = row["custom_id"].split("-")
    encoded = canonical_json(body).encode()
    return ProviderRequest(
        run=run,
        conversation=conversation,
        turn=int(turn),
        attempt=int(attempt),
        body=body,
        size=len(encoded),
        sha256=hashlib.sha256(encoded).hexdigest(),
        tokens_in=max_prompt_tokens(body),
        max_tokens=reply_limit(body) or 0,
    )


def with_mark(body: Mapping[str, Any], **lifetime: str) -> dict[str, Any]:
    """Return the body with a cache mark at its end (Anthropic). The mark is not part of a request's identity: whether
    it pays depends on the way the request is sent."""
    *earlier, last = body["messages"]
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    blocks[-1] = {**blocks[-1], "cache_control": {"type": "ephemeral", **lifetime}}
    return {**body, "messages": [*earlier, {**last, "content": blocks}]}


def without_mark(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body without the mark of `with_mark`, if it has one."""
    *earlier, last = body.get("messages") or [{}]
    match last.get("content"):
        case [{"type": "text", "text": str(text), "cache_control": _}]:
            return {**body, "messages": [*earlier, {**last, "content": text}]}
        case [*blocks, {"cache_control": _, **block}]:
            return {**body, "messages": [*earlier, {**last, "content": [*blocks, block]}]}
    return body


def read_requests(path: Path) -> Iterator[ProviderRequest]:
    """Yield the requests of an input file, one per line."""
    with path.open("rb") as file:
        for line in file:
            yield read_request(json.loads(line))


def max_prompt_tokens(body: Mapping[str, Any]) -> int:
    """Return an upper bound of a body's prompt tokens: a token of a byte-level vocabulary has at least one byte.

    A body without `messages` (classes from outside may use any JSON) is bounded by all of its bytes, and so is content
    other than text.
    """
    if "messages" not in body:
        return len(canonical_json(body).encode()) + _OVERHEAD + (_TOOL_PROMPT if "tools" in body else 0)
    texts = [text for message in body["messages"] for text in _texts(message)]
    texts += _texts({"role": "system", "content": body.get("system", "")})
    tools = canonical_json({"tools": body["tools"]}) if "tools" in body else ""
    hidden = _TOOL_PROMPT + len(tools.encode()) if tools else 0
    return sum(len(text.encode()) + _OVERHEAD for text in texts) + _OVERHEAD + hidden


def likely_prompt_tokens(request: ProviderRequest) -> int:
    """Return an estimate of a request's prompt tokens: a third of the bytes of its texts."""
    return request.tokens_in // 3


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    if isinstance(content, str) and message.keys() <= {"role", "content"}:
        return [content]
    if isinstance(content, list) and all(block.keys() <= {"type", "text", "cache_control"} for block in content):
        return [block["text"] for block in content]
    return [canonical_json(message)]
