"""Secrets that nobody says by accident: three made-up place names and a number, `ashfield-winterlake-copperhill-47`.

A name joins one of 64 beginnings and one of 64 endings (12 bits), the number has 90 values: 42.5 bits in all,
so a guess is hopeless and a chance match in a conversation is out of the question. Secrets drawn together
share no name, and no secret has a name twice.
"""

from __future__ import annotations

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
