"""One conversation of the Secret Game as an async function.

If a model gives no answer, the conversation ends as *incomplete* with the reason: an error's text never becomes a line
of dialogue. A failure that concerns all conversations (budget, account, disk) ends the job instead, and the same
command continues it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from r2v.game.play.player_prompts import chat_messages, guess_messages
from r2v.game.play.records import Interaction
from r2v.llm.providers.remote import Unanswered
from r2v.llm.types import ChatModel, Reply, Request
from r2v.wire.message import Message


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A side of a conversation: model, system prompt and sampling settings."""

    model: ChatModel
    system_prompt: str
    temperature: float
    max_tokens: int


Participants = tuple[Participant, Participant]


async def play_conversation(
    interaction: Interaction, participants: Participants, num_messages: int, guess: bool, run: str
) -> Interaction:
    """Play an interaction that has been set up; `num_messages` counts both participants' messages together. `run` and
    the interaction's id key every random draw."""
    for number in range(num_messages):
        speaker = number % 2
        prompt = chat_messages(participants[speaker].system_prompt, interaction.messages, speaker)
        try:
            reply = await _request(participants[speaker], prompt, run, interaction.id, number)
        except Unanswered as error:
            return replace(interaction, incomplete=_reason(error))
        interaction = _with_usage(replace(interaction, messages=(*interaction.messages, reply.text)), reply)
    return await _with_guesses(interaction, participants, run) if guess else interaction


async def _with_guesses(interaction: Interaction, participants: Participants, run: str) -> Interaction:
    """Ask each participant for the other's secret, one after the other; neither sees the other's guess."""
    guesses = []
    for player, participant in enumerate(participants):
        prompt = guess_messages(participant.system_prompt, interaction.messages, player)
        try:
            reply = await _request(participant, prompt, run, interaction.id, len(interaction.messages) + player)
        except Unanswered as error:
            return replace(interaction, incomplete=_reason(error))
        interaction = _with_usage(interaction, reply)
        guesses.append(reply.text)
    return replace(interaction, guesses=(guesses[0], guesses[1]))


async def _request(
    participant: Participant, messages: tuple[Message, ...], run: str, conversation: str, number: int
) -> Reply:
    reply = await participant.model.reply(
        Request(
            messages=messages,
            key=("game", run, conversation, number),
            temperature=participant.temperature,
            max_tokens=participant.max_tokens,
        )
    )
    if reply.samples[0].finish_reason == "error":
        raise Unanswered(f"{reply.model} gave no answer", final=False)
    return reply


def _reason(error: Unanswered) -> str:
    return " ".join(str(error).split())


def _with_usage(interaction: Interaction, reply: Reply) -> Interaction:
    return replace(
        interaction,
        tokens_in=interaction.tokens_in + reply.usage.tokens_in,
        tokens_out=interaction.tokens_out + reply.usage.tokens_out,
        cost_usd=interaction.cost_usd + reply.usage.cost_usd,
        cut=interaction.cut + (reply.samples[0].finish_reason == "length"),
    )


class Predecessors:
    """Remote that lets a conversation wait for the end of its predecessors, which its players remember.

    The wave engine calls it like a model, so a waiting conversation does not count as one about to send a request, and
    no wave is delayed for it.
    """

    max_batch, max_age = 1, 0.0

    def __init__(self) -> None:
        self._ended: dict[str, asyncio.Future[None]] = {}

    async def __aenter__(self) -> Predecessors:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._ended.clear()

    def ended(self, conversation: str) -> None:
        """Mark a conversation as over and release those that wait for it."""
        future = self._future(conversation)
        if not future.done():
            future.set_result(None)

    def send(self, groups: Sequence[tuple[str, ...]]) -> Sequence[asyncio.Future[None]]:
        """Return a future per group of conversations that is done when all of them are over."""
        return [asyncio.ensure_future(self._all(conversations)) for conversations in groups]

    async def _all(self, conversations: tuple[str, ...]) -> None:
        for conversation in conversations:
            # Shielded, because cancelling one of several waiters must not cancel the future for the others.
            await asyncio.shield(self._future(conversation))

    def _future(self, conversation: str) -> asyncio.Future[None]:
        return self._ended.setdefault(conversation, asyncio.get_running_loop().create_future())
