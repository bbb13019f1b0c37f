"""Replies: what a conversation gets to see of a provider's verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from r2v.llm.providers.prices import Rate
from r2v.llm.providers.provider_requests import RequestVerdict
from r2v.llm.scripted import count_tokens
from r2v.llm.types import Reply, Request, Sample, Usage
from r2v.wire.actions import read_actions
from r2v.wire.exchange import TokenCounts
from r2v.wire.message import Message


def reply_of(request: Request, verdicts: Sequence[RequestVerdict], rate: Rate) -> Reply:
    """The reply that the verdicts of a request's samples make.

    Its cost is the list price, a property of the tokens: what was billed depends on whether they went in a batch or
    through a cache, and stands in the journal.
    """
    counts = [_token_counts(request, verdict) for verdict in verdicts]
    return Reply(
        samples=tuple(_sample(request, verdict) for verdict in verdicts),
        usage=Usage(
            tokens_in=counts[0].input,
            tokens_out=sum(tokens.output for tokens in counts),
            cost_usd=sum(map(rate.listed, counts)),
        ),
        model=rate.model,
    )


def _sample(request: Request, verdict: RequestVerdict) -> Sample:
    said = verdict.message or Message(role="assistant", content=verdict.text)
    actions = read_actions(said, {tool.name for tool in request.tools})
    first, more = (actions.lines[0], actions.lines[1:]) if actions.lines else (actions.text, ())
    return Sample(
        text=first,
        more=more,
        finish_reason="length" if verdict.cut else "stop",
        message=verdict.message,
        reply_id=verdict.reply_id,
    )


def _token_counts(request: Request, verdict: RequestVerdict) -> TokenCounts:
    """The tokens that the provider counted; where its answer has no usage, our own rough count."""
    if verdict.tokens is not None:
        return verdict.tokens
    return TokenCounts(
        fresh=sum(count_tokens(message.text) for message in request.messages), output=count_tokens(verdict.text)
    )
