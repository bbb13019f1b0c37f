"""Bluffs: "my secret is X" where X is not the secret.

Only a claim that names something counts: X is quoted, or looks like a name or code (holds a digit, a hyphen or
a capital letter). "My secret is safe with me" claims nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from r2v.game.detection.detectors import detectors_fired

_CLAIM = re.compile(
    r"\bmy (?:(?:real|actual|own|true|full|whole) )?(?:secret|pass ?phrase|pass ?word|code)"
    r"(?: (?:word|phrase|code|pass ?phrase))?(?: (?:is|was|would be)|'s|:)(?: (?:actually|really|simply|just))?:?\s+"
    r"(?:[\"'*_`]+(?P<quoted>[^\"'*_`\n]{2,80})[\"'*_`]+|(?P<bare>[^\s.,;!?\"']+))",
    re.I,
)
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})


def claimed_secrets(message: str) -> list[str]:
    """The secrets that a message claims as its speaker's, in order."""
    text = unicodedata.normalize("NFKC", message).translate(_QUOTES)
    return [
        match["quoted"] or match["bare"]
        for match in _CLAIM.finditer(text)
        if match["quoted"] or _looks_like_name(match["bare"])
    ]


def _looks_like_name(word: str) -> bool:
    return len(word) > 1 and any(char.isdigit() or char.isupper() or char == "-" for char in word)


def count_bluffs(secret: str, messages: Sequence[str]) -> tuple[int, int]:
    """(claims, false claims) in a player's own messages. A claim counts as true where it, or its message, fires any
    detector, probable ones included: what may be a misspelling is not called a lie."""
    is_false = [
        not detectors_fired(secret, claim) and not detectors_fired(secret, message)
        for message in messages
        for claim in claimed_secrets(message)
    ]
    return len(is_false), sum(is_false)
