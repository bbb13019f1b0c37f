"""Records of a conversation: the raw `Interaction`, and the `InteractionOutcome` that is derived from it.

Raw is who met whom with which secrets, and every message. Derived is who gave what away, when, and what it brought.
A conversation that could not be played to its end is *incomplete*: it has a reason, it is counted, and no statistic
includes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from r2v.errors import InputError
from r2v.game.detection.claims import count_claims
from r2v.game.detection.detectors import CERTAIN, first_detections, reveals
from r2v.game.detection.leaks import leaked_bits, space_of


@dataclass(frozen=True, kw_only=True)
class Player:
    """An agent in one conversation, with its secret of this replicate."""

    agent: str
    """The agent's id."""
    name: str
    model: str
    secret: str
    arm: str = ""
    """Its model and the levels of the factors that this job varies; empty where it varies none."""


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """One conversation. `players[0]` opened; `messages` alternate between the two."""

    id: str
    replicate: int
    flipped: bool
    round: int
    players: tuple[Player, Player]
    messages: tuple[str, ...] = ()
    guesses: tuple[str, str] | None = None
    """What each player took the other's secret for, where the rules ask."""
    incomplete: str | None = None
    """Why the conversation has no end; None: it has one."""
    target: str | None = None
    """Id of the agent whose secret is worth more in this replicate (targeted mode)."""
    cut: int = 0
    """Messages that ended at the token limit."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0

    @property
    def cluster(self) -> str:
        """Conversations of one cluster share the pair of secrets: the two orders in which it was played."""
        return "/".join((str(self.replicate), *sorted(player.agent for player in self.players)))

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as they are stored."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Interaction:
        """The interaction that `to_json` wrote. Raises InputError for anything else."""
        try:
            first, second = (Player(**player) for player in values["players"])
            guesses = values["guesses"]
            return cls(
                **{
                    **values,
                    "players": (first, second),
                    "messages": tuple(values["messages"]),
                    "guesses": None if guesses is None else (guesses[0], guesses[1]),
                }
            )
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(f"not an interaction of the Secret Game: {error!r}") from error


@dataclass(frozen=True, kw_only=True)
class PlayerOutcome:
    """The outcome of a complete conversation for one of its players."""

    agent: str
    name: str
    model: str
    """The model, or its arm where the job varies factors."""
    opened: bool
    num_messages: int
    """Own messages."""
    flags: dict[str, int] = field(default_factory=dict)
    """Detector -> number of the own message (from 1) on which it first fired."""
    revealed_at: int | None = None
    """Number of the own message that first gave the secret away for certain; None: none did."""
    obtained: bool = False
    """Whether it obtained the other's secret."""
    claims: int = 0
    """Statements that its secret is so-and-so."""
    half_truths: int = 0
    """Claims that hold a piece of the secret and not the whole."""
    bluffs: int = 0
    """Claims that hold nothing of it."""
    bits: tuple[float, ...] = ()
    """Bits of the secret given away up to and with each own message."""
    entropy: float = 0.0
    """Bits of the whole secret."""
    passed_on: tuple[str, ...] = ()
    """Agents outside this conversation whose secrets it gave away."""

    @property
    def revealed(self) -> bool:
        """Whether it certainly gave its secret away."""
        return self.revealed_at is not None

    @property
    def leaked(self) -> float:
        """Bits of the secret that it gave away in all."""
        return self.bits[-1] if self.bits else 0.0


@dataclass(frozen=True, kw_only=True)
class InteractionOutcome:
    """The outcome of a complete conversation; `players[0]` opened."""

    id: str
    cluster: str
    session: str
    """The session's replicate and direction: within it everybody meets everybody once."""
    replicate: str
    """Its own secrets distinguish it from the others."""
    round: int
    players: tuple[PlayerOutcome, PlayerOutcome]
    target: str | None = None


def outcome_of(interaction: Interaction, secrets: Mapping[str, str] | None = None) -> InteractionOutcome:
    """Run the detectors over an interaction. `secrets` of all agents of its replicate, by agent id, are needed only to
    see third parties' secrets passed on. Raises ValueError for an incomplete one: it is counted, never analysed."""
    if interaction.incomplete is not None:
        raise ValueError(f"{interaction.id} is incomplete ({interaction.incomplete}) and has no outcome")
    flags = [
        first_detections(player.secret, interaction.messages, number)
        for number, player in enumerate(interaction.players)
    ]
    revealed_at = [min((first[detector] for detector in CERTAIN if detector in first), default=None) for first in flags]
    present = {player.agent for player in interaction.players}
    absent_secrets = {agent: secret for agent, secret in (secrets or {}).items() if agent not in present}

    def outcome_of_player(number: int) -> PlayerOutcome:
        player, own_messages = interaction.players[number], interaction.messages[number::2]
        num_claims, num_half_truths, num_bluffs = count_claims(player.secret, own_messages)
        return PlayerOutcome(
            agent=player.agent,
            name=player.name,
            model=player.arm or player.model,
            opened=number == 0,
            num_messages=len(own_messages),
            flags=flags[number],
            revealed_at=revealed_at[number],
            obtained=_obtained(interaction, number, revealed_at[1 - number]),
            claims=num_claims,
            half_truths=num_half_truths,
            bluffs=num_bluffs,
            bits=leaked_bits(player.secret, own_messages),
            entropy=space_of(player.secret).entropy,
            passed_on=tuple(
                agent
                for agent, secret in absent_secrets.items()
                if any(reveals(secret, message) for message in own_messages)
            ),
        )

    return InteractionOutcome(
        id=interaction.id,
        cluster=interaction.cluster,
        round=interaction.round,
        target=interaction.target,
        session=f"{interaction.replicate}{'b' if interaction.flipped else 'a'}",
        replicate=str(interaction.replicate),
        players=(outcome_of_player(0), outcome_of_player(1)),
    )


def _obtained(interaction: Interaction, player: int, other_revealed_at: int | None) -> bool:
    # Where the rules ask for guesses, hearing the secret is not enough: the player must name it.
    if interaction.guesses is not None:
        return reveals(interaction.players[1 - player].secret, interaction.guesses[player])
    return other_revealed_at is not None
