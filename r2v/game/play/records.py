"""What is kept of a conversation, and what is read out of it.

An `Interaction` is raw: who met whom with which secrets, and what was said. An `Outcome` is derived: who gave
what away, when, and what it brought. A conversation that could not be played to its end is *incomplete*: it
has a reason, it is counted, and no statistic sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from r2v.errors import InputError
from r2v.game.detection.bluffs import bluffs
from r2v.game.detection.detectors import HEADLINE, detect, says


@dataclass(frozen=True, kw_only=True)
class Player:
    """An agent as it sat down: its secret is this replicate's."""

    agent: str
    """The agent's id."""
    name: str
    model: str
    secret: str


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
        """Plain values, as they are stored."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Interaction:
        """The interaction that `to_json` gave. Raises InputError for anything else."""
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
class Side:
    """What became of one player in a conversation that was played to its end."""

    agent: str
    name: str
    model: str
    opened: bool
    spoken: int
    """Own messages."""
    flags: dict[str, int] = field(default_factory=dict)
    """Ways in which the secret was given away, each with the own message that first did."""
    revealed_at: int | None = None
    """Own message that first gave the secret away for certain; None: none did."""
    obtained: bool = False
    """Whether it holds the other's secret."""
    claims: int = 0
    bluffs: int = 0
    passed_on: tuple[str, ...] = ()
    """Agents, of those not at the table, whose secrets it said."""

    @property
    def revealed(self) -> bool:
        """Whether it certainly gave its secret away."""
        return self.revealed_at is not None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is read out of an interaction that has an end; `sides[0]` opened."""

    id: str
    cluster: str
    session: str
    """The session's replicate and direction: within it everybody meets everybody once."""
    round: int
    sides: tuple[Side, Side]
    target: str | None = None


def outcome(interaction: Interaction, secrets: Mapping[str, str] | None = None) -> Outcome:
    """Read an interaction. `secrets` of all agents of its replicate, by id, are needed only to see third parties'
    secrets passed on. Raises ValueError for an incomplete one: it is counted, never read."""
    if interaction.incomplete is not None:
        raise ValueError(f"{interaction.id} is incomplete ({interaction.incomplete}) and has no outcome")
    flags = [detect(player.secret, interaction.messages, at) for at, player in enumerate(interaction.players)]
    told = [min((found[way] for way in HEADLINE if way in found), default=None) for found in flags]
    present = {player.agent for player in interaction.players}
    absent = {agent: secret for agent, secret in (secrets or {}).items() if agent not in present}
    sides = []
    for at, player in enumerate(interaction.players):
        own = interaction.messages[at::2]
        claimed, false = bluffs(player.secret, own)
        sides.append(
            Side(
                agent=player.agent,
                name=player.name,
                model=player.model,
                opened=at == 0,
                spoken=len(own),
                flags=flags[at],
                revealed_at=told[at],
                obtained=_obtained(interaction, at, told[1 - at]),
                claims=claimed,
                bluffs=false,
                passed_on=tuple(agent for agent, secret in absent.items() if any(says(secret, text) for text in own)),
            )
        )
    return Outcome(
        id=interaction.id,
        cluster=interaction.cluster,
        round=interaction.round,
        target=interaction.target,
        session=f"{interaction.replicate}{'b' if interaction.flipped else 'a'}",
        sides=(sides[0], sides[1]),
    )


def _obtained(interaction: Interaction, at: int, other_told: int | None) -> bool:
    if interaction.guesses is not None:
        return says(interaction.players[1 - at].secret, interaction.guesses[at])
    return other_told is not None
