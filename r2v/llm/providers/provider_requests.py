"""Provider requests: one request to a provider's model, its identity, its body, and the verdict that comes back.

A request is identified by its conversation (a digest of the request's key), its turn (how often the model has spoken
before) and the SHA-256 of its body. Each attempt goes out under a custom_id of its own,
`{run8}-{conversation}-{turn}-{attempt}`, in the narrower of the two providers' alphabets. A custom_id that was used
once never stands for another body: a late result of an earlier attempt can therefore not answer a different request.
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
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message

RequestIdentity = tuple[str, int, str]
"""(conversation, turn, SHA-256 of the body): what is paid for once, whatever the number of attempts."""

VerdictKind = Literal["ok", "retry", "silent", "fatal", "account", "neighbours"]
"""ok: a completion. retry: none yet, send it again. silent: an answer without text, billed; asked again a few times.
fatal: refused for good. account: the account or its key is refused, so no request can be answered until its owner
acts. neighbours: refused, and one side speaks twice in a row in it; it is asked again with the two joined."""

_CANONICAL = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode

_OVERHEAD = 8
"""Tokens that a message's wrapping may add, at most."""
_TOOL_PROMPT = 1000
"""Tokens that a provider's own prompt about native tools may add, at most: Anthropic states up to about 800."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestVerdict:
    """What came of a provider request. `tokens` None: the provider sent no usage. `reason` is one line for logs and
    errors; it never becomes part of a conversation."""

    kind: VerdictKind
    text: str = ""
    cut: bool = False
    """The completion ended at max_tokens."""
    tokens: TokenCounts | None = None
    reason: str = ""
    billed: bool = True
    """Whether the provider charges for it, as far as one can tell."""
    outcome: ModelOutcome | None = None
    """The model's failure in a request that is fatal or silent; None: the answer was lost on its way."""
    own: bool = False
    """It is refused for its own content or length: no other request need be."""
    reply_id: str | None = None
    """The provider's name of the reply."""
    message: Message | None = None
    """The completion with its native calls and thoughts, where it has calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultLine:
    """One line of a batch's results. `verdict` None: the line could not be parsed, and `custom_id` is what could be
    made out of it."""

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
    """One side speaks twice in a row, and the messages could be joined."""
    counted_in: int | None = None
    """The same bound by what the provider has counted of its text; None: it has counted none of it."""

    @property
    def prompt_at_most(self) -> int:
        """The most prompt tokens that it can have."""
        return self.tokens_in if self.counted_in is None else min(self.counted_in, self.tokens_in)

    @property
    def custom_id(self) -> str:
        """This attempt's name at the provider."""
        return f"{self.run}-{self.conversation}-{self.turn}-{self.attempt}"

    @property
    def identity(self) -> RequestIdentity:
        """The request, whichever attempt this is."""
        return self.conversation, self.turn, self.sha256

    def with_attempt(self, attempt: int) -> ProviderRequest:
        """The same request as another attempt."""
        return replace(self, attempt=attempt)


def make_request(run: str, request: Request, body: Mapping[str, Any], *, reuse: bool = False) -> ProviderRequest:
    """The first attempt of a request. With `reuse`, identical bodies at temperature 0 are one request whichever
    conversation sends them; without it a request belongs to its key."""
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
        max_tokens=limit_of(body) or request.max_tokens,
    )


def limit_of(body: Mapping[str, Any]) -> int | None:
    """The limit on a reply that a body states, thoughts included; None where it states none."""
    limits = (body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"))
    return next((limit for limit in limits if isinstance(limit, int)), None)


def reply_key(identity: RequestIdentity) -> str:
    """32 hex digits that stand for a request: its draw (conversation and turn) and its body, the model included."""
    conversation, turn, sha256 = identity
    return hashlib.blake2b(f"{conversation}-{turn}-{sha256}".encode(), digest_size=16).hexdigest()


def turn_of(messages: tuple[Message, ...]) -> int:
    """How often the model has spoken before."""
    return sum(message.role == "assistant" for message in messages)


def canonical_json(body: Mapping[str, Any]) -> str:
    """A body as one line of JSON with sorted keys: what is sent and what is hashed."""
    return _CANONICAL(body)


def read_request(row: Mapping[str, Any]) -> ProviderRequest:
    """The request that a line of an input file holds, OpenAI's (`body`) or Anthropic's (`params`)."""
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
        max_tokens=limit_of(body) or 0,
    )


def with_mark(body: Mapping[str, Any], **lifetime: str) -> dict[str, Any]:
    """The body, told to keep the conversation up to its end in the provider's cache. The mark is no part of a
    request's identity: how it travels decides whether it is worth it."""
    *earlier, last = body["messages"]
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    blocks[-1] = {**blocks[-1], "cache_control": {"type": "ephemeral", **lifetime}}
    return {**body, "messages": [*earlier, {**last, "content": blocks}]}


def without_mark(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body of a request that may have been sent `with_mark`."""
    *earlier, last = body.get("messages") or [{}]
    match last.get("content"):
        case [{"type": "text", "text": str(text), "cache_control": _}]:
            return {**body, "messages": [*earlier, {**last, "content": text}]}
        case [*blocks, {"cache_control": _, **block}]:
            return {**body, "messages": [*earlier, {**last, "content": [*blocks, block]}]}
    return body


def read_requests(path: Path) -> Iterator[ProviderRequest]:
    """The requests of an input file, one a line."""
    with path.open("rb") as file:
        for line in file:
            yield read_request(json.loads(line))


def max_prompt_tokens(body: Mapping[str, Any]) -> int:
    """An upper bound of a body's prompt tokens: a token of a byte-level vocabulary is at least one byte.

    A body without `messages` (a provider of one's own may use any JSON) is bounded by all of its bytes, and so is
    content that is more than text.
    """
    if "messages" not in body:
        return len(canonical_json(body).encode()) + _OVERHEAD + (_TOOL_PROMPT if "tools" in body else 0)
    texts = [text for message in body["messages"] for text in _texts(message)]
    texts += _texts({"role": "system", "content": body.get("system", "")})
    tools = canonical_json({"tools": body["tools"]}) if "tools" in body else ""
    hidden = _TOOL_PROMPT + len(tools.encode()) if tools else 0
    return sum(len(text.encode()) + _OVERHEAD for text in texts) + _OVERHEAD + hidden


def likely_prompt_tokens(request: ProviderRequest) -> int:
    """About how many prompt tokens a request has: a third of the bytes of its texts."""
    return request.tokens_in // 3


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    if isinstance(content, str) and message.keys() <= {"role", "content"}:
        return [content]
    if isinstance(content, list) and all(block.keys() <= {"type", "text", "cache_control"} for block in content):
        return [block["text"] for block in content]
    return [canonical_json(message)]
