"""Records of a conversation: the raw `Interaction` and the derived `InteractionOutcome`.

An interaction has the players, their secrets and every message; an outcome has the reveals with their times, and the
secrets obtained. A conversation that could not be played to its end is *incomplete*: it has a reason and is counted,
but enters no statistic.
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
    """Model and levels of the factors that the job varies; empty if it varies none."""


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
    """Each player's guess of the other's secret, if the rules ask for it."""
    incomplete: str | None = None
    """Reason why the conversation was not played to its end; None: it was."""
    target: str | None = None
    """Id of the agent whose secret is worth more in this replicate (targeted mode)."""
    cut: int = 0
    """Messages that ended at the token limit."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0

    @property
    def cluster(self) -> str:
        """Return the cluster: the pair of secrets, shared by its conversations in both orders."""
        return "/".join((str(self.replicate), *sorted(player.agent for player in self.players)))

    def to_json(self) -> dict[str, Any]:
        """Return the stored JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Interaction:
        """Return the interaction written by `to_json`. Raises InputError for anything else."""
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
    """Outcome of a complete conversation for one of its players."""

    agent: str
    name: str
    model: str
    """The model, or the arm if the job varies factors."""
    opened: bool
    num_messages: int
    """Number of own messages."""
    flags: dict[str, int] = field(default_factory=dict)
    """Detector -> number of the own message (from 1) at which it first fired."""
    revealed_at: int | None = None
    """Number of the own message that first gave the secret away with certainty; None: none did."""
    obtained: bool = False
    """True if the player obtained the other's secret."""
    claims: int = 0
    """Number of claims about its own secret."""
    half_truths: int = 0
    """Claims that contain a piece of the secret but not the whole."""
    bluffs: int = 0
    """Claims that contain nothing of the secret."""
    bits: tuple[float, ...] = ()
    """Bits of the secret given away up to and including each own message."""
    entropy: float = 0.0
    """Bits of the whole secret."""
    passed_on: tuple[str, ...] = ()
    """Agents outside this conversation whose secrets the player gave away."""

    @property
    def revealed(self) -> bool:
        """True if the player certainly gave its secret away."""
        return self.revealed_at is not None

    @property
    def leaked(self) -> float:
        """Return the bits of the secret given away in total."""
        return self.bits[-1] if self.bits else 0.0


@dataclass(frozen=True, kw_only=True)
class InteractionOutcome:
    """Outcome of a complete conversation; `players[0]` opened."""

    id: str
    cluster: str
    session: str
    """Replicate and direction of the session, in which all pairs meet once."""
    replicate: str
    """Replicate, the set of secrets."""
    round: int
    players: tuple[PlayerOutcome, PlayerOutcome]
    target: str | None = None


def outcome_of(interaction: Interaction, secrets: Mapping[str, str] | None = None) -> InteractionOutcome:
    """Run the detectors on an interaction. `secrets` of all agents of its replicate, by agent id, are needed only to
    detect that third parties' secrets are passed on. Raises ValueError for an incomplete interaction."""
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
    # With guesses, hearing the secret is not enough: the player must name it.
    if interaction.guesses is not None:
        return reveals(interaction.players[1 - player].secret, interaction.guesses[player])
    return other_revealed_at is not None
