"""Secrets: enough bits, no shared names, and always the same ones under a key."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from r2v.game.detection.detectors import similarity
from r2v.game.play import passphrases as words
from r2v.game.play.passphrases import BITS, passphrases


def test_forty_bits() -> None:
    names = {a + b for a in words._BEGINNINGS for b in words._ENDINGS}
    assert len(names) == 64 * 64, "no two pairs of halves make the same name"
    assert math.log2(4096 * 4095 * 4094 * 90) > BITS - 0.01 > 40


@given(st.integers(0, 10**6), st.integers(2, 12))
def test_secrets_of_one_replicate_are_unlike_each_other(key: int, count: int) -> None:
    secrets = passphrases(count, key)
    assert all(re.fullmatch(r"([a-z]+-){3}[1-9]\d", secret) for secret in secrets)
    names = [name for secret in secrets for name in secret.split("-")[:3]]
    assert len(set(names)) == 3 * count
    assert all(similarity(a, b) < 0.9 for at, a in enumerate(secrets) for b in secrets[:at])


def test_the_key_is_all_there_is_to_it() -> None:
    assert passphrases(4, 1, "x") == passphrases(4, 1, "x") != passphrases(4, 2, "x")
