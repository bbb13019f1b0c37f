"""Bluffs: "my secret is X" where X is not the secret.

Only a claim that names something counts: X is quoted, or looks like a name or code (holds a digit, a hyphen or
a capital letter). "My secret is safe with me" claims nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from r2v.game.detection.detectors import ways

_CLAIM = re.compile(
    r"\bmy (?:(?:real|actual|own|true|full|whole) )?(?:secret|pass ?phrase|pass ?word|code)"
    r"(?: (?:word|phrase|code|pass ?phrase))?(?: (?:is|was|would be)|'s|:)(?: (?:actually|really|simply|just))?:?\s+"
    r"(?:[\"'*_`]+(?P<quoted>[^\"'*_`\n]{2,80})[\"'*_`]+|(?P<bare>[^\s.,;!?\"']+))",
    re.I,
)
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})


def claims(message: str) -> list[str]:
    """What a message says its speaker's secret is, in order."""
    text = unicodedata.normalize("NFKC", message).translate(_QUOTES)
    return [
        match["quoted"] or match["bare"]
        for match in _CLAIM.finditer(text)
        if match["quoted"] or _looks_like_a_name(match["bare"])
    ]


def _looks_like_a_name(word: str) -> bool:
    return len(word) > 1 and any(char.isdigit() or char.isupper() or char == "-" for char in word)


def bluffs(secret: str, own: Sequence[str]) -> tuple[int, int]:
    """(claims, false claims) in one's own messages. A claim is true where it, or its message, gives the secret
    away in any way, probable ones included: what may be a slip of the pen is not called a lie."""
    told = [not ways(secret, claim) and not ways(secret, message) for message in own for claim in claims(message)]
    return len(told), sum(told)
