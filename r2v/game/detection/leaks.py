"""Leaks in bits: how much of a secret its owner has given away, the pieces of it included.

A secret's *space* is what a listener takes for possible before a word is said: `places` different words out of
`vocabulary`, in order, and numbers out of their ranges, all alike likely (a uniform prior). Its entropy is
log2 of its size. Whoever hears a piece (one of the words, or a number) rules out all secrets without it;

    bits leaked = log2(size of the space / number of secrets that hold all pieces said)

With k of n words said, n! / (n - k)! arrangements times (V - k)! / (V - n)! choices of the others are left: the
listener is not taken to know a word's place until all of the secret is said in order. So one word of a passphrase of
the game (three out of 4096 names, one of 90 numbers; 42.49 bits) is worth 12 - log2 3 = 10.4 bits, two 21.4, its
number 6.5. Only what is said for certain counts: hints at a word ("it begins with ash") are worth nothing here, so
the figure is a lower bound.

For a secret of the user's own the space is an assumption: each of its words of four letters or more is one out of
`ASSUMED_VOCABULARY`, a number of d digits one out of 10^d.

The game's own are three made-up place names and a number that nobody says by accident,
`ashfield-winterlake-copperhill-47`: a name joins one of 64 beginnings and one of 64 endings (12 bits), the number has
90 values, 42.5 bits in all. Secrets drawn together share no name, and no secret has a name twice.
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
    """`count` secrets that share no name, drawn under the key."""
    draw = generator("passphrase", *key)
    picks = draw.sample(range(NUM_NAMES), 3 * count)
    names = [_BEGINNINGS[pick // len(_ENDINGS)] + _ENDINGS[pick % len(_ENDINGS)] for pick in picks]
    return ["-".join([*names[3 * k : 3 * k + 3], str(draw.randrange(10, 100))]) for k in range(count)]


def is_passphrase(secret: str) -> bool:
    """Whether a secret is one that `passphrases` may draw."""
    *names, number = secret.split("-")
    return len(set(names)) == 3 == len(names) and _NAMES.issuperset(names) and number in _NUMBERS


ASSUMED_VOCABULARY = 4096
"""Words that a word of a user's own secret might have been."""
MIN_PIECE_LETTERS = 4
"""Shorter words are no piece: they stand in any sentence."""


@dataclass(frozen=True, kw_only=True)
class SecretSpace:
    """The secrets that a listener takes for possible, and the pieces of the true one."""

    words: tuple[str, ...]
    """The true secret's words, all different, in order."""
    vocabulary: int
    numbers: tuple[str, ...] = ()
    ranges: tuple[int, ...] = ()
    """How many values each number might have had."""

    @property
    def entropy(self) -> float:
        """Bits of the whole secret."""
        return self.bits(frozenset((*self.words, *self.numbers)), in_order=True)

    def bits(self, said: frozenset[str], *, in_order: bool = False) -> float:
        """Bits that these pieces give away; `in_order`: the whole secret was said as it is."""
        total = math.perm(self.vocabulary, len(self.words)) * math.prod(self.ranges)
        return math.log2(total) - math.log2(1 if in_order else self.num_consistent(said))

    def num_consistent(self, said: frozenset[str]) -> int:
        """Secrets of the space that hold all these pieces."""
        places, known = len(self.words), len(said.intersection(self.words))
        orders = math.perm(places, known)
        others = math.perm(self.vocabulary - known, places - known)
        unsaid = (size for number, size in zip(self.numbers, self.ranges, strict=True) if number not in said)
        return orders * others * math.prod(unsaid)


def space_of(secret: str) -> SecretSpace:
    """The space of a passphrase of the game, or the assumed one of a user's own secret."""
    pieces = list(dict.fromkeys(words_of(secret)))
    if is_passphrase(secret):
        return SecretSpace(
            words=tuple(pieces[:3]), vocabulary=NUM_NAMES, numbers=tuple(pieces[3:]), ranges=(NUM_NUMBERS,)
        )
    numbers = [piece for piece in pieces if piece.isdecimal() and len(piece) > 1]
    words = [piece for piece in pieces if piece not in numbers and len(piece) >= MIN_PIECE_LETTERS]
    if not words and not numbers:  # "to be": only whole
        words = ["".join(pieces)]
    return SecretSpace(
        words=tuple(words),
        vocabulary=max(ASSUMED_VOCABULARY, len(words)),
        numbers=tuple(numbers),
        ranges=tuple(10 ** len(number) for number in numbers),
    )


def pieces_said(secret: str, messages: Sequence[str]) -> frozenset[str]:
    """The words and numbers of a secret that these messages certainly give away."""
    space = space_of(secret)
    said = {word for word in space.words for message in messages if reveals(word, message)}
    spoken = {word for message in messages for word in words_of(with_digits(message))}
    return frozenset(said | spoken.intersection(space.numbers))


def leaked_bits(secret: str, own_messages: Sequence[str]) -> tuple[float, ...]:
    """Bits given away up to and with each of a player's own messages. Never falls."""
    space, said, bits = space_of(secret), frozenset[str](), []
    is_whole = False
    for number, message in enumerate(own_messages, start=1):
        said |= pieces_said(secret, [message])
        is_whole = is_whole or reveals(secret, message) or splits(secret, own_messages[:number])
        bits.append(space.bits(said, in_order=is_whole))
    return tuple(bits)
