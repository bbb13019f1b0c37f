"""A hand-made game: four agents, both sessions of one replicate, and the secrets revealed in each conversation.

A and B are played by model m1, C and D by m2. Every figure of these tests was counted from this table by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from r2v.game.play.records import Interaction, InteractionOutcome, Player, PlayerOutcome
from r2v.game.statistics.analysis import AgentInfo

SECRETS = {
    "A": "ambergate-mossbridge-ironvale-11",
    "B": "birchford-ravenhill-coralbay-22",
    "C": "cedarlake-thornfield-otterglen-33",
    "D": "deerhollow-frostmill-rubyspring-44",
}
MODELS = {"A": "m1", "B": "m1", "C": "m2", "D": "m2"}
AGENTS = [AgentInfo(id=agent, name=f"Agent {agent}", model=model) for agent, model in MODELS.items()]

TABLE = [  # opener, follower, round, flipped, revealed by
    ("A", "D", 0, False, "A"),
    ("B", "C", 0, False, "BC"),
    ("A", "C", 1, False, ""),
    ("D", "B", 1, False, "B"),
    ("A", "B", 2, False, "AB"),
    ("C", "D", 2, False, "C"),
    ("D", "A", 0, True, ""),
    ("C", "B", 0, True, "C"),
    ("C", "A", 1, True, "A"),
    ("B", "D", 1, True, "BD"),
    ("B", "A", 2, True, None),  # incomplete
    ("D", "C", 2, True, ""),
]


def talk(
    number: int,
    opener: str,
    follower: str,
    round: int,
    flipped: bool,
    reveals: str | None,
    replicate: int = 0,
    extra: Sequence[tuple[int, str]] = (),
) -> Interaction:
    """Return four messages; each revealing player does so with its second one. `extra`: (message from 0, text added to
    it)."""
    pair = (opener, follower)
    texts = ["hello", "hello to you", "and now?", "well"]
    for at, agent in enumerate(pair):
        if agent in (reveals or ""):
            texts[2 + at] = f"It is {SECRETS[agent]}."
    for at, text in extra:
        texts[at] += f" {text}"
    return Interaction(
        id=f"conversation_{number}",
        replicate=replicate,
        flipped=flipped,
        round=round,
        target="C",
        players=(_player(opener), _player(follower)),
        messages=tuple(texts if reveals is not None else texts[:1]),
        incomplete="EnvironmentFault: the server is on fire" if reveals is None else None,
        tokens_in=10,
        tokens_out=5,
        cost_usd=0.25,
    )


def _player(agent: str) -> Player:
    return Player(agent=agent, name=f"Agent {agent}", model=MODELS[agent], secret=SECRETS[agent])


GAME = [talk(number, *row) for number, row in enumerate(TABLE)]


def side(
    model: str, *, at: int | None = None, num_messages: int = 5, opened: bool = True, agent: str = ""
) -> PlayerOutcome:
    """Return a side that gave its secret away with its `at`-th message, or kept it."""
    return PlayerOutcome(
        agent=agent or model,
        name=agent or model,
        model=model,
        opened=opened,
        num_messages=num_messages,
        revealed_at=at,
        flags={} if at is None else {"exact": at},
    )


def pairing(number: int, first: PlayerOutcome, second: PlayerOutcome, cluster: str = "") -> InteractionOutcome:
    """Return an outcome, in a cluster of its own unless one is given."""
    return InteractionOutcome(
        id=f"c{number}", cluster=cluster or str(number), session="0a", replicate="0", round=0, players=(first, second)
    )
