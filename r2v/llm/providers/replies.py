"""Replies: provider verdicts in the form that a conversation sees."""

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
