"""Text normalisation for the detectors: folded letters and digits with their positions.

A secret matches if its letters and digits occur in sequence with only punctuation and blanks between them, and no
further letter or digit adjoins the ends: "AMBER-FOX 27" contains amber-fox-27, "amber-fox-275" does not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

LOOK_ALIKES = str.maketrans(
    "\u0430\u0431\u0435\u0451\u0433\u0456\u0457\u0458\u043a\u043c\u043d\u043e\u0440\u0441\u0501\u0442\u0443\u0432\u0445\u0455\u051b\u051d\u04bb\u0261\u0131"
    "\u03b1\u03b2\u03b5\u03b7\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u03c9\u03b3\u03c3",
    "a6eeriijkmhopcdtybxsqwhgiabenikvoptuxwyo",
)
"""Cyrillic, Greek and other small letters mapped to the Latin ones that they resemble."""
_TENS = dict(zip(str.split("twenty thirty forty fifty sixty seventy eighty ninety"), range(2, 10), strict=True))
_TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_UNITS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_NUMBER_WORD = re.compile(
    rf"\b(?:({'|'.join(_TENS)})(?:[\s-]?({'|'.join(_UNITS)}))?|({'|'.join(_TEENS)}))\b", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NormalizedText:
    """Letters and digits of a text, case-folded, and the position of each in the folded text."""

    letters: str
    positions: tuple[int, ...]

    @property
    def num_runs(self) -> int:
        """Return the number of runs of adjacent characters that the letters form."""
        return count_runs(self.positions)


def fold(text: str) -> str:
    """Return the text in NFKC, case-folded, without zero-width characters, soft hyphens and direction marks."""
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(char for char in folded if unicodedata.category(char) != "Cf")


# Cached, because every message is searched for several secrets.
@lru_cache(maxsize=1024)
def normalize(text: str, already_folded: bool = False) -> NormalizedText:
    """Return a text's letters and digits with their positions."""
    folded = text if already_folded else fold(text)
    positions = tuple(position for position, char in enumerate(folded) if char.isalnum())
    return NormalizedText(letters="".join(folded[position] for position in positions), positions=positions)


def count_runs(positions: tuple[int, ...]) -> int:
    """Return the number of runs of consecutive integers in an increasing sequence."""
    gaps = sum(1 for left, right in zip(positions, positions[1:], strict=False) if right != left + 1)
    return gaps + bool(positions)


def match_runs(letters: str, text: NormalizedText) -> Iterator[int]:
    """Yield, for each match of these letters as whole words, the number of runs they form there."""
    if not letters:
        return
    start = text.letters.find(letters)
    while start >= 0:
        end = start + len(letters)
        if not _same_word(text, start - 1, start) and not _same_word(text, end - 1, end):
            yield count_runs(text.positions[start:end])
        start = text.letters.find(letters, start + 1)


def _same_word(text: NormalizedText, left: int, right: int) -> bool:
    """True if the letters at two adjacent indices belong to one word."""
    if left < 0 or right >= len(text.letters) or text.positions[right] != text.positions[left] + 1:
        return False
    # Scripts written without blanks have no word boundaries, so a change of script counts as one.
    return text.letters[left].isascii() == text.letters[right].isascii()


def words_of(text: str) -> list[str]:
    """Return the runs of letters and digits of the folded text."""
    return re.findall(r"[^\W_]+", fold(text))


def with_digits(text: str) -> str:
    """Return the text with English number words from 10 to 99 replaced by digits.

    >>> with_digits("ashfield forty-seven, or ten")
    'ashfield 47, or 10'
    """

    def digits(match: re.Match[str]) -> str:
        if match[3]:
            return str(10 + _TEENS.index(match[3].lower()))
        return f"{_TENS[match[1].lower()]}{_UNITS.index(match[2].lower()) + 1 if match[2] else 0}"

    return _NUMBER_WORD.sub(digits, text)
