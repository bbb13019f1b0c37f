"""One conversation, as an ordinary async function.

A model that gives no answer says nothing: the conversation ends there as *incomplete*, with the reason, and the
error never becomes something that an agent "said". What concerns all conversations (budget, account, disk) ends the
job instead, and the same command goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from r2v.game.play.player_prompts import asked_to_guess, seen
from r2v.game.play.records import Interaction
from r2v.llm.providers.remote import Unanswered
from r2v.llm.types import ChatModel, Message, Reply, Request


@dataclass(frozen=True, kw_only=True)
class Chair:
    """A side of the table: who speaks there and what it was told."""

    model: ChatModel
    brief: str
    temperature: float
    max_tokens: int


Chairs = tuple[Chair, Chair]


async def converse(interaction: Interaction, chairs: Chairs, num_messages: int, guess: bool, run: str) -> Interaction:
    """Play an interaction that has been set up; `num_messages` counts both sides together. `run` and the
    interaction's id name every draw."""
    for number in range(num_messages):
        at = number % 2
        so_far = seen(chairs[at].brief, interaction.messages, at)
        try:
            reply = await _ask(chairs[at], so_far, run, interaction.id, number)
        except Unanswered as fault:
            return replace(interaction, incomplete=_reason(fault))
        interaction = _paid(replace(interaction, messages=(*interaction.messages, reply.text)), reply)
    return await _guessed(interaction, chairs, run) if guess else interaction


async def _guessed(interaction: Interaction, chairs: Chairs, run: str) -> Interaction:
    """Both sides name the other's secret, one after the other; neither hears what the other guessed."""
    said = []
    for at, chair in enumerate(chairs):
        asked = asked_to_guess(chair.brief, interaction.messages, at)
        try:
            reply = await _ask(chair, asked, run, interaction.id, len(interaction.messages) + at)
        except Unanswered as fault:
            return replace(interaction, incomplete=_reason(fault))
        interaction = _paid(interaction, reply)
        said.append(reply.text)
    return replace(interaction, guesses=(said[0], said[1]))


async def _ask(chair: Chair, messages: tuple[Message, ...], run: str, conversation: str, number: int) -> Reply:
    reply = await chair.model.reply(
        Request(
            messages=messages,
            key=("game", run, conversation, number),
            temperature=chair.temperature,
            max_tokens=chair.max_tokens,
        )
    )
    if reply.samples[0].finish_reason == "error":
        raise Unanswered(f"{reply.model} gave no answer", final=False)
    return reply


def _reason(fault: Unanswered) -> str:
    return " ".join(str(fault).split())


def _paid(interaction: Interaction, reply: Reply) -> Interaction:
    return replace(
        interaction,
        tokens_in=interaction.tokens_in + reply.usage.tokens_in,
        tokens_out=interaction.tokens_out + reply.usage.tokens_out,
        cost_usd=interaction.cost_usd + reply.usage.cost_usd,
        cut=interaction.cut + (reply.samples[0].finish_reason == "length"),
    )


class Predecessors:
    """Lets a conversation wait until others are done, where its players remember them.

    It is a remote that the wave engine asks like a model, so that who waits here is not taken for somebody about
    to speak, and no wave is held back for it.
    """

    max_batch, max_age = 1, 0.0

    def __init__(self) -> None:
        self._ended: dict[str, asyncio.Future[None]] = {}

    async def __aenter__(self) -> Predecessors:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._ended.clear()

    def ended(self, conversation: str) -> None:
        """Say that a conversation is over."""
        future = self._future(conversation)
        if not future.done():
            future.set_result(None)

    def send(self, questions: Sequence[tuple[str, ...]]) -> Sequence[asyncio.Future[None]]:
        """For each group of conversations: a future that is done when all of them are over."""
        return [asyncio.ensure_future(self._all(waited_for)) for waited_for in questions]

    async def _all(self, conversations: tuple[str, ...]) -> None:
        for conversation in conversations:
            await asyncio.shield(self._future(conversation))

    def _future(self, conversation: str) -> asyncio.Future[None]:
        return self._ended.setdefault(conversation, asyncio.get_running_loop().create_future())
