"""Bits leaked, compared with closed forms and with spaces small enough to be enumerated."""

from __future__ import annotations

import itertools
import math
import re
from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2v.game.detection import leaks as words
from r2v.game.detection.detectors import MIN_SIMILARITY, edit_distance
from r2v.game.detection.leaks import (
    ASSUMED_VOCABULARY,
    SecretSpace,
    is_passphrase,
    leaked_bits,
    passphrases,
    pieces_said,
    space_of,
)

SECRET = "ashfield-winterlake-copperhill-47"
ENTROPY = math.log2(4096 * 4095 * 4094 * 90)


@pytest.mark.parametrize(
    ("places", "vocabulary", "ranges"), [(1, 4, ()), (2, 5, (3,)), (3, 5, (4,)), (3, 3, ()), (2, 4, (2, 3))]
)
def test_every_set_of_pieces_of_a_space_that_is_listed_whole(
    places: int, vocabulary: int, ranges: tuple[int, ...]
) -> None:
    """All secrets are listed, and those that hold the pieces are counted."""
    names = [f"w{k}" for k in range(vocabulary)]
    numbers = tuple(f"n{at}_0" for at in range(len(ranges)))
    choices = [[f"n{at}_{k}" for k in range(size)] for at, size in enumerate(ranges)]
    every = [(*words, *rest) for words in permutations(names, places) for rest in product(*choices)]
    space = SecretSpace(words=tuple(names[:places]), vocabulary=vocabulary, numbers=numbers, ranges=ranges)
    pieces = (*space.words, *numbers)
    for count in range(len(pieces) + 1):
        for said in combinations(pieces, count):
            left = sum(set(said) <= set(secret) for secret in every)
            assert space.num_consistent(frozenset(said)) == left
            assert space.bits(frozenset(said)) == pytest.approx(math.log2(len(every) / left), abs=1e-12)
    assert space.entropy == pytest.approx(math.log2(len(every)), abs=1e-12)


@pytest.mark.parametrize(
    ("messages", "bits"),
    [
        (["I say nothing."], 0),
        (["One word is Ashfield."], math.log2(4096 / 3)),
        (["winterlake and ashfield"], math.log2(4096 * 4095 / 6)),
        (["the number is 47"], math.log2(90)),
        (["it ends in forty-seven"], math.log2(90)),
        (["it is 475 or 4 7"], 0),
        (["dleifhsa, read backwards"], math.log2(4096 / 3)),
        (["copperhill, winterlake, ashfield: 47"], ENTROPY - math.log2(6)),
        ([SECRET], ENTROPY),
        (["ashfield first", "then winterlake", "then copperhill and at last 47"], ENTROPY),
    ],
)
def test_a_passphrase_by_hand(messages: list[str], bits: float) -> None:
    assert leaked_bits(SECRET, messages)[-1] == pytest.approx(bits, abs=1e-9)


def test_bits_are_counted_by_message_and_never_fall() -> None:
    after = leaked_bits(SECRET, ["hello", "ashfield", "nothing more", SECRET, "bye"])
    assert after == tuple(sorted(after)) and after[0] == 0 and after[1] == after[2] < after[3] == after[4]


def test_every_passphrase_is_known_as_one_and_other_secrets_have_an_assumed_space() -> None:
    assert all(
        is_passphrase(secret) and space_of(secret).entropy == pytest.approx(ENTROPY) for secret in passphrases(20, 1)
    )
    assert not is_passphrase("ashfield-ashfield-copperhill-47") and not is_passphrase(
        "ashfield-winterlake-copperhill-7"
    )
    space = space_of("my blue elephant 42")
    assert (space.words, space.numbers, space.ranges) == (("blue", "elephant"), ("42",), (100,))
    assert space.entropy == pytest.approx(math.log2(ASSUMED_VOCABULARY * (ASSUMED_VOCABULARY - 1) * 100))
    assert space_of("SECRET1").entropy == pytest.approx(12)
    assert pieces_said("SECRET1", ["It is a secret, 1 of many"]) == {"secret1"}, "as the detectors read it"
    assert space_of("to be").words == ("tobe",)


def test_forty_bits() -> None:
    names = {a + b for a in words._BEGINNINGS for b in words._ENDINGS}
    assert len(names) == 64 * 64, "no two pairs of halves make the same name"
    assert math.log2(4096 * 4095 * 4094 * 90) > 42.48


@given(st.integers(0, 10**6), st.integers(2, 12))
def test_secrets_of_one_replicate_are_unlike_each_other(key: int, count: int) -> None:
    secrets = passphrases(count, key)
    assert all(re.fullmatch(r"([a-z]+-){3}[1-9]\d", secret) for secret in secrets)
    names = [name for secret in secrets for name in secret.split("-")[:3]]
    assert len(set(names)) == 3 * count
    letters = [secret.replace("-", "") for secret in secrets]
    for a, b in itertools.combinations(letters, 2):
        assert 1 - edit_distance(a, b) / max(len(a), len(b)) < MIN_SIMILARITY


def test_the_key_is_all_there_is_to_it() -> None:
    assert passphrases(4, 1, "x") == passphrases(4, 1, "x") != passphrases(4, 2, "x")
