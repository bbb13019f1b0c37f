"""Verdicts become a reply: what a conversation gets to see of a provider's answers."""

from __future__ import annotations

from collections.abc import Sequence

from r2v.llm.providers.message_format import action_of
from r2v.llm.providers.prices import Rate, Tokens
from r2v.llm.providers.provider_requests import Verdict
from r2v.llm.scripted import count_tokens
from r2v.llm.types import Reply, Request, Sample, Usage


def reply_of(request: Request, verdicts: Sequence[Verdict], rate: Rate) -> Reply:
    """The reply that a request's answers make. Its cost is the list price, a property of the tokens; what was billed
    hangs on how they travelled, and stands in the journal."""
    counted = [_counted(request, verdict) for verdict in verdicts]
    return Reply(
        samples=tuple(
            Sample(text=action_of(verdict.text, request.tools), finish_reason="length" if verdict.cut else "stop")
            for verdict in verdicts
        ),
        usage=Usage(
            tokens_in=counted[0].input,
            tokens_out=sum(tokens.output for tokens in counted),
            cost_usd=sum(map(rate.listed, counted)),
        ),
        model=rate.model,
    )


def _counted(request: Request, verdict: Verdict) -> Tokens:
    """The tokens that the provider counted; by our own rough count where it did not tell."""
    if verdict.tokens is not None:
        return verdict.tokens
    return Tokens(
        fresh=sum(count_tokens(message.content) for message in request.messages), output=count_tokens(verdict.text)
    )
