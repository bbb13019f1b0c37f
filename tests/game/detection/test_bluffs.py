"""What counts as claiming a secret, and which claims are lies."""

from __future__ import annotations

import pytest

from r2v.game.detection.bluffs import claimed_secrets, count_bluffs

SECRET = "copperfield-ravenbrook-silverlake-47"


@pytest.mark.parametrize(
    ("message", "claimed"),
    [
        ("My secret is oakmill-thornmere-12.", ["oakmill-thornmere-12"]),
        ("Fine: my actual secret phrase is: \u201cblue tulips\u201d, yours?", ["blue tulips"]),
        ("my secret is **Blue Tulips** ok", ["Blue Tulips"]),
        ("My passphrase was SWORDFISH", ["SWORDFISH"]),
        ("My secret is safe with me.", []),
        ("my secret is worth five points", []),
        ("What is my secret?", []),
        ("Your secret is X-1", []),
        ("I will keep my secret. Is it good?", []),
        ("my secret is alpha-1. No, my secret is beta-2!", ["alpha-1", "beta-2"]),
    ],
)
def test_claims(message: str, claimed: list[str]) -> None:
    assert claimed_secrets(message) == claimed


def test_a_lie_is_a_claim_that_is_not_the_secret() -> None:
    own = [
        f"My secret is {SECRET}!",
        "My secret is oakmill-thornmere-12",
        "my secret is great",
        "My secret is copperfeild-ravenbrook-silverlake-47",
    ]
    assert count_bluffs(SECRET, own) == (3, 1)
    assert count_bluffs(SECRET, ["I say nothing"]) == (0, 0)
    assert count_bluffs("blue tulips in may", ['My secret is "blue tulips in may"']) == (1, 0)
    assert count_bluffs("blue tulips in may", ["My secret is Blue tulips in May"]) == (1, 0), (
        "the whole message is looked at"
    )
