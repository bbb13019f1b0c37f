"""Pairings: round robins with every pair in both orders with the same secrets.

A *replicate* is one set of secrets. In it every pair of agents meets twice, each agent opening once, which separates
the effect of the position from that of the agent. The conversations in the round robin's own order form one *session*,
the reversed ones another: within a session all pairs meet once, and memory (if the rules have it) does not cross
sessions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice


@dataclass(frozen=True, kw_only=True, order=True)
class Meeting:
    """One conversation of the schedule; `first` and `second` count agents from 0, `first` opens."""

    replicate: int
    flipped: bool
    round: int
    first: int
    second: int


def round_robin(num_agents: int) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs in which all pairs meet once (circle method). With an odd number one agent rests
    in each round.

    >>> round_robin(4)
    [[(0, 3), (1, 2)], [(0, 2), (3, 1)], [(0, 1), (2, 3)]]
    """
    seats: list[int | None] = [*range(num_agents), *([None] if num_agents % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(a, b) for a, b in facing if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def schedule(num_agents: int, num_interactions: int, pairs: Sequence[tuple[int, int]] | None = None) -> list[Meeting]:
    """Return the first `num_interactions` meetings: replicate by replicate and round by round, both orders of a pair in
    succession, so that a schedule cut anywhere stays balanced. `pairs`: the agents that meet, in one round; None: a
    round robin."""
    rounds = round_robin(num_agents) if pairs is None else [list(pairs)]
    return list(islice(_meetings(rounds), num_interactions))


def _meetings(rounds: Sequence[Sequence[tuple[int, int]]]) -> Iterator[Meeting]:
    for replicate in count():
        for number, pairs in enumerate(rounds):
            for first, second in pairs:
                yield Meeting(replicate=replicate, flipped=False, round=number, first=first, second=second)
                yield Meeting(replicate=replicate, flipped=True, round=number, first=second, second=first)
