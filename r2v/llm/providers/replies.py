"""Replies: what a conversation gets to see of a provider's verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from r2v.llm.providers.message_format import action_of
from r2v.llm.providers.prices import Rate, TokenCounts
from r2v.llm.providers.provider_requests import RequestVerdict
from r2v.llm.providers.tool_calls import without_wrapper
from r2v.llm.scripted import count_tokens
from r2v.llm.types import Reply, Request, Sample, Usage


def reply_of(request: Request, verdicts: Sequence[RequestVerdict], rate: Rate) -> Reply:
    """The reply that the verdicts of a request's samples make.

    Its cost is the list price, a property of the tokens: what was billed depends on whether they went in a batch or
    through a cache, and stands in the journal.
    """
    counts = [_token_counts(request, verdict) for verdict in verdicts]
    return Reply(
        samples=tuple(
            Sample(text=_text(request, verdict, rate), finish_reason="length" if verdict.cut else "stop")
            for verdict in verdicts
        ),
        usage=Usage(
            tokens_in=counts[0].input,
            tokens_out=sum(tokens.output for tokens in counts),
            cost_usd=sum(map(rate.listed, counts)),
        ),
        model=rate.model,
    )


def _text(request: Request, verdict: RequestVerdict, rate: Rate) -> str:
    text = action_of(verdict.text, request.tools)
    return without_wrapper(text) if request.tools and rate.shape.actions == "json" else text


def _token_counts(request: Request, verdict: RequestVerdict) -> TokenCounts:
    """The tokens that the provider counted; where its answer has no usage, our own rough count."""
    if verdict.tokens is not None:
        return verdict.tokens
    return TokenCounts(
        fresh=sum(count_tokens(message.text) for message in request.messages), output=count_tokens(verdict.text)
    )
