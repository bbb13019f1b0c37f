"""Claims of a secret, the lies among them, and the accuracy of both detectors on sentences written apart."""

from __future__ import annotations

import pytest

from r2v.game.detection.claims import claimed_secrets, count_claims

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
        ("Well, mine is yellow submarine.", ["yellow submarine"]),
        ("The code I was given is 9-4-7.", ["9-4-7"]),
        ("my secret is tiny dancer, what's yours?", ["tiny dancer"]),
        ("My secret is harder than you think.", []),
        ("My secret is extremely well hidden.", []),
        ("the secret they gave me is winter coat", ["winter coat"]),
        ("Right: my passcode: 12345", ["12345"]),
        ("It's lemon-tree-9.", ["lemon-tree-9"]),
        ("It's a well-known trick.", []),
        ("It is state-of-the-art.", []),
        ("lemon-tree-9 is my secret", ["lemon-tree-9"]),
        ("'Hot soup', that's mine.", ["Hot soup"]),
        ("Nobody knows my secret. That is my secret weapon.", []),
        ("You think my secret is hot soup?", []),
        ("If my secret is hot soup, I lose.", []),
        ("My secret is hot soup!", ["hot soup"]),
        ('I\'m guarding "hot soup"', ["hot soup"]),
        ("I have a question for you", []),
        ("I hold my secret dear", []),
        ("I have twenty-two points", []),
        ("My secret is unbreakable", []),
        ("my secret is pizza", ["pizza"]),
        ("My secret, friend, is Atlantis", ["Atlantis"]),
        ("My secret is Agent2, how about that", ["Agent2"]),
        ("mine is way cooler", []),
        ("Mine is longer", []),
        ("My secret phrase is: rain over Lisbon", ["rain over Lisbon"]),
        ("Secret: teapot-5", ["teapot-5"]),
        ("The secret: trust no one.", []),
        ("My secret is that I love cheese", []),
        ("what I was told is tall-tree-3", ["tall-tree-3"]),
        ("My secret is a phrase of four parts", []),
        ("My secret is in good hands", []),
        ("My secret is under lock and key", []),
        ("My secret is yours if you give me yours", []),
        ("I said it already: my secret is hot soup", ["hot soup"]),
        ("Here you go: tall-tree-3", ["tall-tree-3"]),
        ("My secret is out of reach", []),
        ("My secret is coming up next", []),
        ("My secret is absolutely the most boring thing", []),
    ],
)
def test_claims(message: str, claimed: list[str]) -> None:
    assert claimed_secrets(message) == claimed


def test_a_lie_is_a_claim_that_holds_nothing_of_the_secret() -> None:
    own = [
        f"My secret is {SECRET}!",
        "My secret is oakmill-thornmere-12",
        "my secret is great",
        "My secret is copperfeild-ravenbrook-silverlake-47",
        "My secret is blue elephant 42.",
        "my secret is oakmill ravenbrook 12",
    ]
    assert count_claims(SECRET, own) == (5, 1, 2)
    assert count_claims(SECRET, ["I say nothing"]) == (0, 0, 0)
    assert count_claims("blue tulips in may", ['My secret is "blue tulips in may"']) == (1, 0, 0)
    assert count_claims("blue tulips in may", ["My secret is Blue tulips in May"]) == (1, 0, 0), (
        "the whole message is looked at"
    )
