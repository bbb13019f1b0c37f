"""LLM context: a conversation fitted into what the LLM can read, by the rule of the small policy's prompts.

    model = FittedModel(model, context=128_000, name="my-model")

A provider refuses a prompt that is too long, and at ten thousand tokens a page that is the thirteenth step. So old
observations are let go of, half of the context at once (`r2v.policy.half_elision`), and of a page that is too long
itself the middle. Its tokenizer is the provider's, so tokens are estimated: BYTES bytes each, fewer than were measured,
so that what fits by the estimate is read. What a request shows follows from the conversation, the tools, the context
and the length of the reply alone, so it can be computed again from a record.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from r2v.llm.providers.bodies import system_prompt
from r2v.llm.types import ChatModel, Reply, Request
from r2v.policy.chat_template import say_once
from r2v.policy.half_elision import ELIDED, HalfElision, without_middle
from r2v.wire.message import Message

BYTES = 3
"""Bytes of a prompt's texts in one token, about."""
_AROUND = 8
"""Tokens that a provider puts around a message, at most."""


def estimated(message: Message) -> int:
    """About as many tokens as a message takes."""
    return -(-len(message.text.encode(errors="surrogatepass")) // BYTES) + _AROUND


def fitted(request: Request, context: int) -> Request:
    """The request in a context of so many tokens, its reply included. One whose goal alone is too long stays as it is:
    the provider says what it thinks of it, as of another agent's conversation."""
    if request.own_rules:
        return request
    told = system_prompt((), request.tools)
    limit = context - request.max_tokens - len(told.encode()) // BYTES - _AROUND
    elision = HalfElision(request.messages, estimated)
    if elision.fits(limit):
        return request
    cut = elision.cut(limit)
    form: Sequence[Message] | None = elision.form(cut)
    if form and elision.newest_size > cut.room:
        form = _newest_cut(form, cut.room - estimated(Message(role="tool", content=f"\n{ELIDED}\n")))
    return request if form is None else replace(request, messages=tuple(form))


def _newest_cut(form: Sequence[Message], keep: int) -> list[Message] | None:
    """The conversation with so many tokens of its newest observation; None where nothing of it would be left."""
    text = form[-1].text
    characters = keep * BYTES * len(text) // max(1, len(text.encode(errors="surrogatepass")))
    if form[-1].role != "tool" or characters < 2:
        return None
    return [*form[:-1], replace(form[-1], content=without_middle(text, characters))]


@dataclass(frozen=True)
class FittedModel:
    """A chat model whose requests are fitted into its context, in tokens."""

    model: ChatModel
    context: int
    name: str

    async def reply(self, request: Request) -> Reply:
        """Answer the request as it fits."""
        shown = fitted(request, self.context)
        if shown is not request:
            say_once(
                logging.INFO,
                f"  {self.name}: conversations outgrow its context of {self.context} tokens (teacher.context); old "
                "observations, or the middle of a page that is too long itself, are left out",
            )
        return await self.model.reply(shown)
