"""Half elision: old observations are elided so that a prompt fits, down to half of the limit at once.

When a conversation outgrows its limit, its oldest observations become a marker until the rest fills half of the limit.
Later prompts only grow, each beginning with the one before, until the limit is reached again, so that a model's cache
of the common beginning is reused. Where old observations are not enough, old turns are dropped, down to half of the
room that the newest observation leaves; where that one is too long itself, its middle is cut.

    elision = HalfElision(messages, count)
    cut = elision.cut(limit)
    form = elision.form(cut)            # the newest observation whole: the caller cuts its middle to cut.room

A cut depends on the conversation alone, and is the same for a conversation read step by step or at once: it follows
the steps from the first on. Only the size of each message is needed, counted once. The opening (system prompt and goal)
and the action that follows are never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from r2v.wire.message import Message

ELIDED = "[elided]"
"""Marker of an old observation, or of the middle of a long one, that was left out."""

Count = Callable[[Message], int]
"""The tokens that a message adds to a prompt; any number above the limit for one that is too long by itself."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The elided parts: the oldest `elided` observations, the oldest `dropped` turns; `room`: the tokens left for the
    newest observation."""

    elided: int
    dropped: int
    room: int


class HalfElision:
    """A conversation (opening, then observations and actions by turns, then the newest observation) and the sizes of
    its messages."""

    def __init__(self, messages: Sequence[Message], count: Count) -> None:
        first = next((i for i, message in enumerate(messages) if message.role == "tool"), len(messages))
        turns = list(messages[first:])
        self.newest = turns.pop() if len(turns) % 2 else None
        self._opening, self._turns = list(messages[:first]), turns
        self._count = count
        self._sizes = [count(message) for message in turns]
        self.opening_size = sum(map(count, self._opening))
        self.newest_size = 0 if self.newest is None else count(self.newest)

    def fits(self, limit: int) -> bool:
        """True if nothing has to be elided, now or at any earlier step."""
        return self.opening_size + sum(self._sizes) + self.newest_size <= limit

    def cut(self, limit: int) -> Cut:
        """Return the elision at the newest step. Nothing fits if `room` is below 1, or too small for a marker."""
        if self.fits(limit):
            return Cut(0, 0, limit - self.opening_size - sum(self._sizes))
        observations, actions = self._sizes[::2], self._sizes[1::2]
        marker_sizes = [min(size, self._marker) for size in observations]
        elided = dropped = old = 0
        for step, newest in enumerate([*observations, self.newest_size]):
            if self.opening_size + old + newest > limit:
                while elided < step and self.opening_size + old + newest > limit // 2:
                    old -= observations[elided] - marker_sizes[elided]
                    elided += 1
                room = limit - min(newest, limit // 2)
                if self.opening_size + old > room:
                    while dropped < step and self.opening_size + old > room // 2:
                        old -= marker_sizes[dropped] + actions[dropped]
                        dropped += 1
            if step < len(actions):
                old += newest + actions[step]
        return Cut(elided, dropped, limit - self.opening_size - old)

    def form(self, cut: Cut) -> list[Message]:
        """Return the conversation after a cut, its newest observation whole."""
        turns = self._turns[:]
        for i in range(0, 2 * cut.elided, 2):
            if self._sizes[i] > self._marker:
                turns[i] = replace(turns[i], content=ELIDED)
        return self._opening + turns[2 * cut.dropped :] + ([] if self.newest is None else [self.newest])

    @property
    def _marker(self) -> int:
        return self._count(Message(role="tool", content=ELIDED))


def without_middle(text: str, keep: int) -> str:
    """Return a text's beginning and end, `keep` characters in all, with a marker between them."""
    each = keep // 2
    return f"{text[:each]}\n{ELIDED}\n{text[len(text) - each :]}"
