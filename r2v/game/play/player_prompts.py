"""What a player is told, and how the conversation looks from its chair: its own words are the assistant's, the
other's the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from r2v.game.play.rules import GameMode, Rules
from r2v.llm.types import Message

OPENING = "(The conversation begins. You speak first.)"
GUESS = (
    "(The conversation is over. What is the other player's secret? Reply with the secret alone, or with UNKNOWN "
    "if you cannot tell.)"
)


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """A conversation that a player remembers."""

    other: str
    opened: bool
    messages: tuple[str, ...]


def scoring(mode: GameMode, rules: Rules, num_agents: int) -> str:
    """The mode's scoring, in words."""
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


def brief(
    *,
    mode: GameMode,
    rules: Rules,
    num_agents: int,
    name: str,
    other: str,
    secret: str,
    messages: int,
    opens: bool,
    earlier: Sequence[Earlier] = (),
) -> str:
    """The system prompt of one player in one conversation."""
    own = messages - messages // 2 if opens else messages // 2
    parts = [
        f'You are {name}, and your secret is "{secret}".',
        "This is the Secret Game. Every player has a secret and meets the other players in conversations of two. The "
        "aim is to get as many points as possible. You may say what you like, true or not.",
        scoring(mode, rules, num_agents),
        f"You are talking to {other}. Together you write {messages} messages, in turn; {own} of them are yours, and "
        f"{'you open' if opens else f'{other} opens'}. Reply with the text of your next message and nothing else.",
    ]
    if earlier:
        parts.append("Your earlier conversations:\n\n" + "\n\n".join(_transcript(one) for one in earlier))
    return "\n\n".join(parts)


def _transcript(one: Earlier) -> str:
    names = ("You", one.other) if one.opened else (one.other, "You")
    return "\n".join(f"{names[at % 2]}: {text}" for at, text in enumerate(one.messages))


def seen(system: str, messages: Sequence[str], at: int) -> tuple[Message, ...]:
    """The conversation so far from the chair `at` (0 opened)."""
    said = [
        Message(role="assistant" if number % 2 == at else "user", content=text) for number, text in enumerate(messages)
    ]
    opening = [Message(role="user", content=OPENING)] if at == 0 else []
    return (Message(role="system", content=system), *opening, *said)


def asked_to_guess(system: str, messages: Sequence[str], at: int) -> tuple[Message, ...]:
    """The question after the last message. Where the other spoke last, both are one turn of the user."""
    talk = seen(system, messages, at)
    if talk[-1].role == "user":
        return (*talk[:-1], Message(role="user", content=f"{talk[-1].content}\n\n{GUESS}"))
    return (*talk, Message(role="user", content=GUESS))
