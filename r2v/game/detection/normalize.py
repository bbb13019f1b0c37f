"""Texts as a detector reads them: letters and digits in one form, and where each of them stood.

A secret is found wherever its letters and digits follow each other with nothing but punctuation and blanks
between, and no further letter or digit touching the ends: "AMBER-FOX 27" holds amber-fox-27, "amber-fox-275"
does not.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, kw_only=True, slots=True)
class Plain:
    """The letters and digits of a text, case folded, and the place of each in the normalised text."""

    letters: str
    places: tuple[int, ...]

    @property
    def pieces(self) -> int:
        """In how many pieces the letters stand."""
        return pieces_between(self.places)


def normal(text: str) -> str:
    """NFKC, case folded, without characters that take no room (zero-width, soft hyphens, direction marks)."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if unicodedata.category(char) != "Cf")


@lru_cache(maxsize=1024)
def plain(text: str, already_normal: bool = False) -> Plain:
    """A text's letters and digits. Remembered: every message is looked at for several secrets."""
    folded = text if already_normal else normal(text)
    places = tuple(place for place, char in enumerate(folded) if char.isalnum())
    return Plain(letters="".join(folded[place] for place in places), places=places)


def pieces_between(places: tuple[int, ...]) -> int:
    """Runs of neighbours in a rising sequence of places."""
    return sum(1 for a, b in zip(places, places[1:], strict=False) if b != a + 1) + bool(places)


def found(needle: str, text: Plain) -> Iterator[int]:
    """For each place where the needle's letters stand whole in the text: in how many pieces they stand."""
    if not needle:
        return
    start = text.letters.find(needle)
    while start >= 0:
        end = start + len(needle)
        if not _touches(text, start - 1, start) and not _touches(text, end - 1, end):
            yield pieces_between(text.places[start:end])
        start = text.letters.find(needle, start + 1)


def _touches(text: Plain, left: int, right: int) -> bool:
    """Whether two letters of one word stand side by side; scripts written without blanks have no words."""
    if left < 0 or right >= len(text.letters) or text.places[right] != text.places[left] + 1:
        return False
    return text.letters[left].isascii() == text.letters[right].isascii()
