"""Half elision: what of a conversation is let go of so that its prompt fits, half of the limit at once.

When a conversation outgrows its limit, its oldest observations become a marker until what remains fills half of the
limit. The prompts after that only grow, each beginning with the one before, until the limit is reached again: what a
model has made of the common beginning is used again. Where old observations are not enough, old turns go, down to half
of what the newest observation leaves; and where that one is too long itself, its middle goes.

    elision = HalfElision(messages, count)
    cut = elision.cut(limit)
    form = elision.form(cut)            # the newest observation as it is: whoever counts cuts its middle to cut.room

A cut depends on the conversation alone, and is the same whether its steps were seen one by one or at once: it follows
the steps from the first on. Only the size of each message is needed, counted once. The opening (system prompt and goal)
and the action that follows are never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from r2v.wire.message import Message

ELIDED = "[elided]"
"""Stands where an old observation, or the middle of a long one, was left out."""

Count = Callable[[Message], int]
"""The number of tokens that a message adds to a prompt; any number above the limit for one that is too long anyway."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The elided parts: the oldest `elided` observations, the oldest `dropped` turns; and how many tokens are left
    for the newest observation."""

    elided: int
    dropped: int
    room: int


class HalfElision:
    """A conversation (opening, then observations and actions by turns, then the newest observation) and the sizes of
    its messages."""

    def __init__(self, messages: Sequence[Message], count: Count) -> None:
        first = next((i for i, message in enumerate(messages) if message.role == "tool"), len(messages))
        said = list(messages[first:])
        self.newest = said.pop() if len(said) % 2 else None
        self._opening, self._said = list(messages[:first]), said
        self._count = count
        self._sizes = [count(message) for message in said]
        self.opening_size = sum(map(count, self._opening))
        self.newest_size = 0 if self.newest is None else count(self.newest)

    def fits(self, limit: int) -> bool:
        """True if nothing has to be elided. Then nothing had to at any earlier step."""
        return self.opening_size + sum(self._sizes) + self.newest_size <= limit

    def cut(self, limit: int) -> Cut:
        """The elision at the newest step. Nothing fits where `room` is below 1, or not enough for a marker."""
        if self.fits(limit):
            return Cut(0, 0, limit - self.opening_size - sum(self._sizes))
        observations, actions = self._sizes[::2], self._sizes[1::2]
        kept = [min(size, self._marker) for size in observations]
        elided = dropped = old = 0
        for step, newest in enumerate([*observations, self.newest_size]):
            if self.opening_size + old + newest > limit:
                while elided < step and self.opening_size + old + newest > limit // 2:
                    old -= observations[elided] - kept[elided]
                    elided += 1
                room = limit - min(newest, limit // 2)
                if self.opening_size + old > room:
                    while dropped < step and self.opening_size + old > room // 2:
                        old -= kept[dropped] + actions[dropped]
                        dropped += 1
            if step < len(actions):
                old += newest + actions[step]
        return Cut(elided, dropped, limit - self.opening_size - old)

    def form(self, cut: Cut) -> list[Message]:
        """The conversation after a cut, its newest observation as it is."""
        said = self._said[:]
        for i in range(0, 2 * cut.elided, 2):
            if self._sizes[i] > self._marker:
                said[i] = replace(said[i], content=ELIDED)
        return self._opening + said[2 * cut.dropped :] + ([] if self.newest is None else [self.newest])

    @property
    def _marker(self) -> int:
        return self._count(Message(role="tool", content=ELIDED))


def without_middle(text: str, keep: int) -> str:
    """A text's beginning and end, `keep` characters together, a marker between them."""
    each = keep // 2
    return f"{text[:each]}\n{ELIDED}\n{text[len(text) - each :]}"
