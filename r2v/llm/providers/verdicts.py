"""Verdicts: the outcome for the request of every answer and error of a provider.

`RequestVerdict.kind` is ok, retry, silent, fatal or account. `r2v.wire` reads the formats; this module maps their
content to verdicts. An unknown error is retried: giving up would lose a request that may be answered, and the number of
attempts is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider_requests import RequestVerdict, ResultLine, VerdictKind
from r2v.llm.scripted import count_tokens
from r2v.llm.types import Reply, Request, Sample, Usage
from r2v.wire.actions import read_actions, split_thought
from r2v.wire.errors import ErrorKind, WireError, read_error
from r2v.wire.exchange import TokenCounts, WireReply
from r2v.wire.message import Message, RefusalPart, TextPart, sendable_json

ReadReply = Callable[[Any], WireReply]

_KEY = re.compile(r"\b(sk|key)-[A-Za-z0-9_*-]{6,}")
_CUSTOM_ID = re.compile(rb'"custom_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"')
_LONGEST = 300  # characters: the reason has to fit one line of a log
_KINDS: dict[ErrorKind, VerdictKind] = {"retry": "retry", "account": "account"}


def one_line(text: object, secret: str = "") -> str:
    """Return a provider's message as one short line without keys, since error messages may quote the key they got."""
    line = " ".join(str(text).split())
    if secret:
        line = line.replace(secret, "[key]")
    return _KEY.sub("[key]", line)[:_LONGEST]


def verdict_of_error(error: WireError) -> RequestVerdict:
    """Return the verdict of an error."""
    outcome = {"overflow": "overflowed", "refused": "refused", "filtered": "refused"}.get(error.kind)
    return RequestVerdict(
        kind=_KINDS.get(error.kind, "fatal"),
        reason=one_line(error.line) + ("; teacher.context shortens what is sent" if outcome == "overflowed" else ""),
        outcome=outcome,  # type: ignore[arg-type]
        own=error.kind in ("filtered", "overflow"),
        billed=False,
    )


def verdict_of_reply(reply: WireReply) -> RequestVerdict:
    """Return the verdict of a reply, which may be empty, cut, refused, or an error under status 200."""
    usage = reply.usage
    tokens = usage.counts(0, 0) if usage is not None and usage.whole else None
    if reply.error is not None:
        verdict = verdict_of_error(reply.error)
        return RequestVerdict(
            kind=verdict.kind, reason=verdict.reason, outcome=verdict.outcome, own=verdict.own,
            tokens=tokens, billed=tokens is not None,
        )  # fmt: skip
    text = "".join(part.text for part in reply.message.parts if isinstance(part, (TextPart, RefusalPart)))
    if reply.finish == "refusal":
        reason = one_line(f"refused: {text or reply.extra.get('stop_reason') or 'by a content filter'}")
        return RequestVerdict(kind="fatal", reason=reason, outcome="refused", own=True, tokens=tokens)
    if reply.message.calls:
        return RequestVerdict(
            kind="ok",
            text=reply.message.text,
            message=reply.message,
            cut=reply.finish != "stop",
            tokens=tokens,
            reply_id=reply.id or None,
        )
    if split_thought(text)[1].strip():
        cut = reply.finish != "stop"
        return RequestVerdict(kind="ok", text=text, cut=cut, tokens=tokens, reply_id=reply.id or None)
    # a model that spent its tokens on thoughts would do so again; an empty answer is often followed by a full one
    if reply.finish == "length":
        reason = "max_tokens were used up before any text"
        return RequestVerdict(kind="fatal", reason=reason, outcome="truncated", own=True, tokens=tokens)
    if reply.finish == "context":
        reason = "the model's context was used up before any text"
        return RequestVerdict(kind="fatal", reason=reason, outcome="overflowed", own=True, tokens=tokens)
    return RequestVerdict(kind="silent", reason="a completion without text", outcome="silent", tokens=tokens)


def openai_line(row: Mapping[str, Any], read_reply: ReadReply) -> RequestVerdict:
    """Return the verdict of a line of an OpenAI output or error file; `read_reply` reads its endpoint's format."""
    response, error = row.get("response"), row.get("error")
    if response is None:
        return verdict_of_error(read_error(None, {"error": error}))
    status, body = response["status_code"], response["body"]
    if 200 <= status < 300 and not error:
        return verdict_of_reply(read_reply(body))
    return verdict_of_error(read_error(status, body or {"error": error}))


def anthropic_line(row: Mapping[str, Any], read_reply: ReadReply) -> RequestVerdict:
    """Return the verdict of a line of a Message Batch's results."""
    result = row["result"]
    if result["type"] == "succeeded":
        return verdict_of_reply(read_reply(result["message"]))
    if result["type"] == "errored":
        return verdict_of_error(read_error(None, result.get("error")))
    return verdict_of_error(WireError(codes=(result["type"],), message=f"the request was {result['type']}"))


def read_line(raw: bytes, read: Callable[[Mapping[str, Any]], RequestVerdict]) -> ResultLine:
    """Return the result in a raw line. A malformed line has no verdict, but its custom_id if one is found: the request
    was run and billed, so it must not count as missing."""
    try:
        row = sendable_json(json.loads(raw))
        return ResultLine(custom_id=str(row["custom_id"]), verdict=read(row))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        match = _CUSTOM_ID.search(raw)
        return ResultLine(custom_id=match[1].decode() if match else None, verdict=None)


def reply_of(request: Request, verdicts: Sequence[RequestVerdict], rate: Rate) -> Reply:
    """Return the reply that combines the verdicts of a request's samples, one per sample.

    Its cost is the list price, a property of the tokens alone. The billed price depends on batches and caches; the
    journal records it.
    """
    counts = [_token_counts(request, verdict) for verdict in verdicts]
    return Reply(
        samples=tuple(_sample(request, verdict) for verdict in verdicts),
        usage=Usage(
            tokens_in=counts[0].input,  # the samples share one prompt
            tokens_out=sum(tokens.output for tokens in counts),
            cost_usd=sum(map(rate.listed, counts)),
        ),
        model=rate.model,
    )


def _sample(request: Request, verdict: RequestVerdict) -> Sample:
    message = verdict.message or Message(role="assistant", content=verdict.text)
    actions = read_actions(message, {tool.name for tool in request.tools})
    first, more = (actions.lines[0], actions.lines[1:]) if actions.lines else (actions.text, ())
    return Sample(
        text=first,
        more=more,
        finish_reason="length" if verdict.cut else "stop",
        message=verdict.message,
        reply_id=verdict.reply_id,
    )


def _token_counts(request: Request, verdict: RequestVerdict) -> TokenCounts:
    """Return the provider's token counts; without usage in its answer, R2V's rough count."""
    if verdict.tokens is not None:
        return verdict.tokens
    return TokenCounts(
        fresh=sum(count_tokens(message.text) for message in request.messages), output=count_tokens(verdict.text)
    )
