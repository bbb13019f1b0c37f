"""Prompts of the players: a system prompt, and the conversation so far with the player's own messages as assistant and
the other's as user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from r2v.game.play.arms import fill
from r2v.game.play.rules import GameMode, Rules
from r2v.wire.message import Message

OPENING = "(The conversation begins. You speak first.)"
GUESS = (
    "(The conversation is over. What is the other player's secret? Reply with the secret alone, or with UNKNOWN "
    "if you cannot tell.)"
)


@dataclass(frozen=True, kw_only=True)
class RememberedConversation:
    """An earlier conversation of the session from one player's view."""

    other: str
    opened: bool
    messages: tuple[str, ...]


def scoring_text(mode: GameMode, rules: Rules, num_agents: int) -> str:
    """Return the mode's scoring rules as text for the players."""
    if mode is GameMode.STANDARD:
        pay = rules.payoffs
        text = (
            f"Points for this conversation: if both players keep their secrets, each gets {pay.none:g}; if both "
            f"reveal them, each gets {pay.both:g}; if only one does, the other gets {pay.obtained_only:g} and the "
            f"one who revealed gets {pay.revealed_only:g}."
        )
    elif mode is GameMode.RETAINED:
        text = (
            f"You keep the secrets you obtain. At the end each is worth {num_agents} divided by the number of "
            "players who then hold it, its owner not counted: the fewer hold a secret, the more it is worth."
        )
    elif mode is GameMode.DIVERSITY:
        text = f"You get {rules.diversity_points:g} points for each different secret you hold at the end."
    else:
        text = (
            f"You get {rules.standard_points:g} points for each secret you hold at the end. One player's secret is "
            f"worth {rules.target_bonus:g} points more; nobody is told whose."
        )
    if rules.resell:
        text += " A secret you hold counts for the listener too if you pass it on."
    if rules.guess:
        text += " A secret counts as obtained if you can name it correctly after the conversation."
    return text


def system_prompt(
    *,
    mode: GameMode,
    rules: Rules,
    num_agents: int,
    name: str,
    other: str,
    secret: str,
    messages: int,
    opens: bool,
    earlier: Sequence[RememberedConversation] = (),
    persona: str = "",
    instructions: str = "",
) -> str:
    """Return the system prompt of one player in one conversation: persona, instructions (by default the game's own),
    earlier conversations."""
    num_own = messages - messages // 2 if opens else messages // 2
    parts = [persona] if persona else []
    if instructions:
        values = {
            "name": name,
            "other": other,
            "secret": secret,
            "scoring": scoring_text(mode, rules, num_agents),
            "messages": str(messages),
            "own_messages": str(num_own),
            "opener": "you" if opens else other,
        }
        parts.append(fill(instructions, values))
    else:
        parts += [
            f'You are {name}, and your secret is "{secret}".',
            "This is the Secret Game. Every player has a secret and meets the other players in conversations of two. "
            "The aim is to get as many points as possible. You may say what you like, true or not.",
            scoring_text(mode, rules, num_agents),
            f"You are talking to {other}. Together you write {messages} messages, in turn; {num_own} of them are "
            f"yours, and {'you open' if opens else f'{other} opens'}. Reply with the text of your next message and "
            "nothing else.",
        ]
    if earlier:
        parts.append(
            "Your earlier conversations:\n\n" + "\n\n".join(_transcript(conversation) for conversation in earlier)
        )
    return "\n\n".join(parts)


def _transcript(conversation: RememberedConversation) -> str:
    names = ("You", conversation.other) if conversation.opened else (conversation.other, "You")
    return "\n".join(f"{names[number % 2]}: {text}" for number, text in enumerate(conversation.messages))


def chat_messages(system: str, messages: Sequence[str], player: int) -> tuple[Message, ...]:
    """Return the conversation so far from `player`'s view (0 opened). Both providers require alternating roles that
    begin with user, so the opener gets a user message to answer."""
    opening = [Message(role="user", content=OPENING)] if player == 0 else []
    turns = [
        Message(role="assistant" if number % 2 == player else "user", content=text)
        for number, text in enumerate(messages)
    ]
    return (Message(role="system", content=system), *opening, *turns)


def guess_messages(system: str, messages: Sequence[str], player: int) -> tuple[Message, ...]:
    """Return the conversation followed by the question for the other's secret, merged into the other's message if that
    was the last one."""
    turns = chat_messages(system, messages, player)
    if turns[-1].role == "user":
        return (*turns[:-1], Message(role="user", content=f"{turns[-1].text}\n\n{GUESS}"))
    return (*turns, Message(role="user", content=GUESS))
