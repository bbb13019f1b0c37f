"""Text normalisation for the detectors: letters and digits in one form, and the position of each of them.

A secret is matched wherever its letters and digits follow each other with nothing but punctuation and blanks
between, and no further letter or digit touching the ends: "AMBER-FOX 27" holds amber-fox-27, "amber-fox-275"
does not.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, kw_only=True, slots=True)
class NormalizedText:
    """The letters and digits of a text, case folded, and the position of each in the folded text."""

    letters: str
    positions: tuple[int, ...]

    @property
    def num_runs(self) -> int:
        """Into how many runs of neighbouring characters the letters fall."""
        return count_runs(self.positions)


def fold(text: str) -> str:
    """NFKC, case folded, without characters of no width (zero-width, soft hyphens, direction marks)."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if unicodedata.category(char) != "Cf")


# Cached, because every message is searched for several secrets.
@lru_cache(maxsize=1024)
def normalize(text: str, already_folded: bool = False) -> NormalizedText:
    """A text's letters and digits with their positions."""
    folded = text if already_folded else fold(text)
    positions = tuple(position for position, char in enumerate(folded) if char.isalnum())
    return NormalizedText(letters="".join(folded[position] for position in positions), positions=positions)


def count_runs(positions: tuple[int, ...]) -> int:
    """Number of runs of consecutive integers in a rising sequence of positions."""
    gaps = sum(1 for left, right in zip(positions, positions[1:], strict=False) if right != left + 1)
    return gaps + bool(positions)


def match_runs(letters: str, text: NormalizedText) -> Iterator[int]:
    """For each place where these letters stand whole in the text: the number of runs they fall into there."""
    if not letters:
        return
    start = text.letters.find(letters)
    while start >= 0:
        end = start + len(letters)
        if not _same_word(text, start - 1, start) and not _same_word(text, end - 1, end):
            yield count_runs(text.positions[start:end])
        start = text.letters.find(letters, start + 1)


def _same_word(text: NormalizedText, left: int, right: int) -> bool:
    """Whether the letters at two neighbouring indices belong to one word."""
    if left < 0 or right >= len(text.letters) or text.positions[right] != text.positions[left] + 1:
        return False
    # Scripts written without blanks have no word boundaries, so a change of script counts as one.
    return text.letters[left].isascii() == text.letters[right].isascii()
