"""Leaks in bits: information about a secret given away by its owner, including single pieces.

A secret's *space* is the listener's prior: n different words out of a vocabulary of V, in order, and numbers out of
their ranges, all equally likely. Its entropy is log2 of its size. Hearing a piece (a word or a number) rules out all
secrets without it:

    bits leaked = log2(size of the space / number of secrets that contain all pieces said)

With k of n words said, n! / (n - k)! arrangements times (V - k)! / (V - n)! choices of the others remain: a word's
position counts as unknown until the whole secret is said in order. So one word of the game's passphrases (three out of
4096 names, one of 90 numbers; 42.49 bits) is worth 12 - log2 3 = 10.4 bits, two 21.4, the number 6.5. Only certain
detections count, and hints at a word ("it begins with ash") do not, so the figure is a lower bound.

For a user's own secret the space is an assumption: each of its words of four letters or more is one out of
`ASSUMED_VOCABULARY`, a number of d digits one out of 10^d.

The game's own secrets are three invented place names and a number, unlikely to be said by accident:
`ashfield-winterlake-copperhill-47`. A name joins one of 64 beginnings and one of 64 endings (12 bits), the number has
90 values. Secrets drawn together share no name, and no secret has a name twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from r2v.game.detection.detectors import reveals, splits
from r2v.game.detection.normalize import with_digits, words_of
from r2v.randomness import generator

_BEGINNINGS = str.split("""
    amber ash autumn badger barley beech birch black bramble bright bronze cedar cherry cinder clover copper coral
    crow deer dusk east elder ember fallow fern flint fox frost garnet ginger gold granite hazel heron holly honey
    iron ivory jasper juniper kestrel larch laurel linden maple marble marten mist moss north oak otter pebble
    poplar quill raven reed rowan rust sable silver thorn walnut winter
""")
_ENDINGS = str.split("""
    abbey arch bank barn bay beck bell bend bluff bow bridge brook burrow cairn chapel cliff combe court cove creek
    croft dale dell den farm fell field ford forge gate glade glen grange grove hall harbor haven heath hill hollow
    holm house keep lake lane marsh meadow mere mill moor orchard pass path pier pond port ridge rock spring stead
    stile tower vale well
""")

NUM_NAMES = len(_BEGINNINGS) * len(_ENDINGS)
NUM_NUMBERS = 90
_NUMBERS = frozenset(map(str, range(10, 10 + NUM_NUMBERS)))
_NAMES = frozenset(beginning + ending for beginning in _BEGINNINGS for ending in _ENDINGS)


def passphrases(count: int, *key: str | int) -> list[str]:
    """Return `count` secrets that share no name, drawn by key."""
    draw = generator("passphrase", *key)
    picks = draw.sample(range(NUM_NAMES), 3 * count)
    names = [_BEGINNINGS[pick // len(_ENDINGS)] + _ENDINGS[pick % len(_ENDINGS)] for pick in picks]
    return ["-".join([*names[3 * k : 3 * k + 3], str(draw.randrange(10, 100))]) for k in range(count)]


def is_passphrase(secret: str) -> bool:
    """True if `passphrases` may draw this secret."""
    *names, number = secret.split("-")
    return len(set(names)) == 3 == len(names) and _NAMES.issuperset(names) and number in _NUMBERS


ASSUMED_VOCABULARY = 4096
"""Assumed vocabulary size for a word of a user's own secret."""
MIN_PIECE_LETTERS = 4
"""Shorter words are not counted as pieces, since they occur in any sentence."""


@dataclass(frozen=True, kw_only=True)
class SecretSpace:
    """Space of possible secrets, with the pieces of the true one."""

    words: tuple[str, ...]
    """The true secret's words, all different, in order."""
    vocabulary: int
    numbers: tuple[str, ...] = ()
    ranges: tuple[int, ...] = ()
    """Number of possible values of each number."""

    @property
    def entropy(self) -> float:
        """Return the bits of the whole secret."""
        return self.bits(frozenset((*self.words, *self.numbers)), in_order=True)

    def bits(self, pieces: frozenset[str], *, in_order: bool = False) -> float:
        """Return the bits given away by these pieces; `in_order`: True if the whole secret was said in order."""
        total = math.perm(self.vocabulary, len(self.words)) * math.prod(self.ranges)
        return math.log2(total) - math.log2(1 if in_order else self.num_consistent(pieces))

    def num_consistent(self, pieces: frozenset[str]) -> int:
        """Return the number of secrets in the space that contain all these pieces."""
        num_words, num_said = len(self.words), len(pieces.intersection(self.words))
        orders = math.perm(num_words, num_said)
        others = math.perm(self.vocabulary - num_said, num_words - num_said)
        unsaid = (size for number, size in zip(self.numbers, self.ranges, strict=True) if number not in pieces)
        return orders * others * math.prod(unsaid)


def space_of(secret: str) -> SecretSpace:
    """Return the space of a game's passphrase, or the assumed one of a user's own secret."""
    pieces = list(dict.fromkeys(words_of(secret)))
    if is_passphrase(secret):
        return SecretSpace(
            words=tuple(pieces[:3]), vocabulary=NUM_NAMES, numbers=tuple(pieces[3:]), ranges=(NUM_NUMBERS,)
        )
    numbers = [piece for piece in pieces if piece.isdecimal() and len(piece) > 1]
    words = [piece for piece in pieces if piece not in numbers and len(piece) >= MIN_PIECE_LETTERS]
    if not words and not numbers:  # such as "to be", which counts only as a whole
        words = ["".join(pieces)]
    return SecretSpace(
        words=tuple(words),
        vocabulary=max(ASSUMED_VOCABULARY, len(words)),
        numbers=tuple(numbers),
        ranges=tuple(10 ** len(number) for number in numbers),
    )


def pieces_said(secret: str, messages: Sequence[str]) -> frozenset[str]:
    """Return the words and numbers of a secret that these messages certainly give away."""
    space = space_of(secret)
    words_said = {word for word in space.words for message in messages if reveals(word, message)}
    spoken = {word for message in messages for word in words_of(with_digits(message))}
    return frozenset(words_said | spoken.intersection(space.numbers))


def leaked_bits(secret: str, own_messages: Sequence[str]) -> tuple[float, ...]:
    """Return the bits given away up to and including each of a player's own messages; non-decreasing."""
    space, pieces, bits = space_of(secret), frozenset[str](), []
    is_whole = False
    for number, message in enumerate(own_messages, start=1):
        pieces |= pieces_said(secret, [message])
        is_whole = is_whole or reveals(secret, message) or splits(secret, own_messages[:number])
        bits.append(space.bits(pieces, in_order=is_whole))
    return tuple(bits)
