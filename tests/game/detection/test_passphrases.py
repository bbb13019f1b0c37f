"""Secrets: enough bits, no shared names, and always the same ones under a key."""

from __future__ import annotations

import itertools
import math
import re

from hypothesis import given
from hypothesis import strategies as st

from r2v.game.detection import passphrases as words
from r2v.game.detection.detectors import MIN_SIMILARITY, edit_distance
from r2v.game.detection.passphrases import passphrases


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
