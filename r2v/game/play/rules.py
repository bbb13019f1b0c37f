"""The four scoring modes of the Secret Game.

Every agent has a secret and meets the others in conversations of two. By default an agent obtains a secret as soon as
its owner says it, with `guess` only by naming it. `standard` pays each conversation by a table; the other modes score
the secrets that an agent holds at the end of a session, after all pairs have met once:

    retained    sum over held secrets of N / number of holders (without the owner): rare secrets are worth more
    diversity   points for each different secret
    targeted    points for each secret, and a bonus for the one drawn as the target
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from r2v.constraints import Range
from r2v.errors import UsageError, nearest

Points = Annotated[float, Range()]


class GameMode(StrEnum):
    """Scoring mode of a game."""

    STANDARD = "standard"
    RETAINED = "retained"
    DIVERSITY = "diversity"
    TARGETED = "targeted"


def parse_game_mode(name: str) -> GameMode:
    """Return the game mode of a name. Raises UsageError."""
    if name not in set(GameMode):
        raise UsageError(f"game mode {name}: no such mode; {nearest(name, GameMode)}")
    return GameMode(name)


@dataclass(frozen=True, kw_only=True)
class Payoffs:
    """Points that a conversation of the standard mode pays an agent."""

    none: Points = 0.0
    """Neither agent obtained a secret."""
    both: Points = 1.0
    """Each obtained the other's."""
    obtained_only: Points = 3.0
    """This agent obtained the other's and kept its own."""
    revealed_only: Points = 0.0
    """This agent's secret was obtained and it got nothing."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Options of the game."""

    payoffs: Payoffs = field(default_factory=Payoffs)
    """Standard mode: points of a conversation."""
    diversity_points: Points = 2.0
    """Diversity mode: points for each different secret held."""
    standard_points: Points = 1.0
    """Targeted mode: points for each secret held."""
    target_bonus: Points = 5.0
    """Targeted mode: additional points for the target, by default 1 + 5 in total."""
    memory: bool = False
    """Agents see their earlier conversations of the session, whose rounds are then played in sequence."""
    resell: bool = False
    """A held secret that is passed on counts as obtained by the listener. Needs `memory`; not in standard mode."""
    guess: bool = False
    """After the last message both agents name the other's secret; obtained means named correctly."""


def check_rules(mode: GameMode, rules: Rules, num_agents: int) -> None:
    """Raise UsageError for a game that cannot be played."""
    fewest = 3 if mode is GameMode.RETAINED else 2
    if num_agents < fewest:
        why = "; with two, every secret's rarity is 2" if fewest == 3 else ""
        raise UsageError(f"{mode} mode needs at least {fewest} agents, got {num_agents}{why}")
    if rules.resell and (mode is GameMode.STANDARD or not rules.memory):
        raise UsageError(
            f"rules.resell in {mode} mode with memory={str(rules.memory).lower()}: needs memory=true and "
            "a mode that counts held secrets (retained, diversity, targeted)"
        )


def payoff(payoffs: Payoffs, obtained: bool, lost: bool) -> float:
    """Return the points of a standard conversation for an agent: `obtained` is True if it obtained the other's secret,
    `lost` if it revealed its own."""
    if obtained:
        return payoffs.both if lost else payoffs.obtained_only
    return payoffs.revealed_only if lost else payoffs.none


Holding = tuple[str, str]
"""(holder, owner) of a secret, both agent ids."""


def session_scores(
    mode: GameMode, rules: Rules, agents: Sequence[str], held: Iterable[Holding], target: str | None = None
) -> dict[str, float]:
    """Return every agent's score at the end of a session. A secret counts once per holder, and never for its owner.
    `target` is the owner of the secret with the bonus. Raises ValueError in standard mode."""
    held = {(holder, owner) for holder, owner in held if holder != owner}
    num_holders = {owner: sum(1 for _, held_owner in held if held_owner == owner) for owner in agents}

    def worth(owner: str) -> float:
        if mode is GameMode.RETAINED:
            return len(agents) / num_holders[owner]
        if mode is GameMode.DIVERSITY:
            return rules.diversity_points
        return rules.standard_points + (rules.target_bonus if owner == target else 0.0)

    if mode is GameMode.STANDARD:
        raise ValueError("the standard mode is paid by the conversation, see payoff()")
    return {agent: sum(worth(owner) for holder, owner in sorted(held) if holder == agent) for agent in agents}
