"""Request, reply and token counts, common to all wire formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from r2v.wire.errors import WireError
from r2v.wire.message import Extra, Message, Tool, ToolSpec, UnknownPart, functions_of, mapping

Finish = Literal["stop", "length", "context", "refusal", "error"]
"""Reason for the end of a reply: the model was done or called a tool; the limit on its tokens; the end of the model's
context; a refusal by the model or a filter; an error of the server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCounts:
    """Tokens of one reply by price. Each prompt token is in exactly one of the first four."""

    fresh: int = 0
    """Prompt tokens at the full price."""
    cached: int = 0
    """Read from the provider's prompt cache."""
    write_5m: int = 0
    """Written to the provider's shorter prompt cache: five minutes at Anthropic, half an hour at OpenAI."""
    write_1h: int = 0
    """Written to a cache that lasts an hour."""
    output: int = 0
    """Tokens of the reply, thoughts included."""

    @property
    def input(self) -> int:
        """All prompt tokens."""
        return self.fresh + self.cached + self.write_5m + self.write_1h

    @property
    def nonzero(self) -> dict[str, int]:
        """The counts that are not 0, by name."""
        return {name: count for name, count in asdict(self).items() if count}


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenUsage:
    """Tokens as a reply reports them; None: not reported. `input`: all prompt tokens, cached ones included."""

    input: int | None = None
    output: int | None = None
    cached: int = 0
    write_5m: int = 0
    write_1h: int = 0

    @property
    def whole(self) -> bool:
        """True if both prompt and reply tokens are reported."""
        return self.input is not None and self.output is not None

    def counts(self, own_input: int, own_output: int) -> TokenCounts:
        """Return the tokens by price, with our own counts in place of unreported ones."""
        prompt = own_input if self.input is None else self.input
        cached = min(self.cached, prompt)
        written = min(self.write_5m + self.write_1h, prompt - cached)
        write_1h = min(self.write_1h, written)
        return TokenCounts(
            fresh=prompt - cached - written,
            cached=cached,
            write_5m=written - write_1h,
            write_1h=write_1h,
            output=own_output if self.output is None else self.output,
        )


def whole_number(value: object) -> int | None:
    """Return a token count as servers write it (50, 50.0); None for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        return None
    return int(value)


def first_number(fields: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these fields that holds a token count; None if none does."""
    return next((number for name in names if (number := whole_number(fields.get(name))) is not None), None)


def reply_limit(fields: Mapping[str, Any]) -> int | None:
    """Return a request's limit on the tokens of its reply, thoughts included; None without one."""
    return first_number(fields, "max_tokens", "max_completion_tokens", "max_output_tokens")


def usage_of(value: object) -> TokenUsage | None:
    """Return the usage of a reply from its object in any format; None if it reports none.

    Only Messages counts cached tokens separately from the prompt's, and it is recognised by its own names.
    """
    fields = mapping(value)
    if not fields:
        return None
    details = mapping(fields.get("prompt_tokens_details")) or mapping(fields.get("input_tokens_details"))
    # a server that does not count the prompt reports 0
    prompt = first_number(fields, "prompt_tokens", "input_tokens", "prompt_eval_count") or None
    output = first_number(fields, "completion_tokens", "output_tokens", "eval_count")
    total = whole_number(fields.get("total_tokens"))
    if prompt is not None and total is not None and total >= prompt + (output or 0):
        output = total - prompt  # some servers leave thoughts out of the output; the total, which is billed, has them
    if "cache_read_input_tokens" in fields or "cache_creation_input_tokens" in fields:
        return _messages_usage(fields, prompt, output)
    if prompt is None and output is None:
        return None
    return TokenUsage(
        input=prompt,
        output=output,
        cached=first_number(details, "cached_tokens")
        or first_number(fields, "prompt_cache_hit_tokens", "cached_tokens")
        or 0,
        write_5m=first_number(details, "cache_write_tokens") or 0,
    )


def _messages_usage(fields: Mapping[str, Any], prompt: int | None, output: int | None) -> TokenUsage:
    read = whole_number(fields.get("cache_read_input_tokens")) or 0
    written = whole_number(fields.get("cache_creation_input_tokens")) or 0
    hour = whole_number(mapping(fields.get("cache_creation")).get("ephemeral_1h_input_tokens"))
    # without a breakdown, count all writes as the dearer kind: our requests ask for the one-hour cache
    hour = written if hour is None else min(hour, written)
    if (
        "prompt_tokens" not in fields
    ):  # LiteLLM writes both formats' names, with all prompt tokens under that of Chat Completions
        prompt = (prompt or 0) + read + written or None
    return TokenUsage(input=prompt, output=output, cached=read, write_5m=written - hour, write_1h=hour)


@dataclass(frozen=True, kw_only=True, slots=True)
class WireRequest:
    """A request in any of the formats.

    `system`: the prompt outside the conversation, in Messages and Responses. `options`: all fields but model, messages,
    system and tools, unchanged.
    """

    model: str
    messages: tuple[Message, ...]
    system: Message | None = None
    tools: tuple[Tool, ...] = ()
    options: Extra = field(default_factory=dict, hash=False)

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The messages, a system prompt first."""
        return self.messages if self.system is None else (self.system, *self.messages)

    @property
    def functions(self) -> tuple[ToolSpec, ...]:
        """Functions that may be called: of the request, of namespaces and of items that add tools."""
        added = [part.value for message in self.messages for part in message.parts if isinstance(part, UnknownPart)]
        more = (UnknownPart(value=value) for value in added if value.get("type") == "additional_tools")
        return functions_of((*self.tools, *more))

    @property
    def max_tokens(self) -> int | None:
        """Limit on the tokens of the reply, thoughts included; None without a limit."""
        return reply_limit(self.options)

    @property
    def stream(self) -> bool:
        """True if a stream is requested."""
        return self.options.get("stream") is True


@dataclass(frozen=True, kw_only=True, slots=True)
class WireReply:
    """A reply in any of the formats. `error`: failure reported by the server, possibly under status 200."""

    message: Message
    finish: Finish = "stop"
    usage: TokenUsage | None = None
    id: str = ""
    model: str = ""
    error: WireError | None = None
    extra: Extra = field(default_factory=dict, hash=False)
