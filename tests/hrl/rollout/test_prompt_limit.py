"""Prompts that are too long: as much of the ends of earlier texts as fits."""

from __future__ import annotations

from collections.abc import Sequence

from r2v.hrl.rollout.prompt_limit import limited


def make(texts: Sequence[str]) -> tuple[int, ...]:
    """A letter a token, behind ten of a problem."""
    return (*range(10), *(ord(letter) for text in texts for letter in text))


def test_what_fits_is_left_alone() -> None:
    assert limited(make, ["abc", "de"], 15) == (make(["abc", "de"]), False)
    assert limited(make, ["abc" * 99], None) == (make(["abc" * 99]), False)


def test_of_every_text_its_end_is_kept_as_long_as_possible() -> None:
    assert limited(make, ["abcdefgh", "xyz"], 17) == (make(["efgh", "xyz"]), True)
    assert limited(make, ["abcdefgh", "xyz"], 12) == (make(["h", "z"]), True)


def test_where_the_rest_alone_is_too_long_its_end_is_kept() -> None:
    assert limited(make, ["abc"], 4) == ((6, 7, 8, 9), True)
    assert limited(make, [], 4) == ((6, 7, 8, 9), True)
