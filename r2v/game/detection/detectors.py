"""Detectors of a revealed secret, one per form of revealing it in a message, each with its own flag.

    exact      the secret itself, ignoring case, punctuation, hyphens and zero-width characters
    spelled    its letters spaced out or cut into more pieces than it has
    spoken     its number in words: "... forty-seven"
    look_alike letters of other scripts that look like its own
    reversed   backwards
    rot13, leet, base64, hex
    fuzzy      edit similarity of at least 0.9: probable
    split      all its words in order, with other words between or across several messages: probable
    confirmed  the other player names it and the owner confirms it: probable

Reveal rates count the detectors in `CERTAIN`; those in `PROBABLE` are reported separately. Not detected: paraphrases,
acrostics, other ciphers.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Callable, Iterator, Sequence

from r2v.game.detection.normalize import LOOK_ALIKES, NormalizedText, fold, match_runs, normalize, with_digits, words_of

CERTAIN = ("exact", "spelled", "spoken", "look_alike", "reversed", "rot13", "leet", "base64", "hex")
PROBABLE = ("fuzzy", "split", "confirmed")
MIN_SIMILARITY = 0.9
"""Lowest edit similarity that counts as the secret (detector `fuzzy`)."""
MIN_ENCODED_LETTERS = 5
"""Shorter secrets are only matched unencoded: encoded or reversed forms occur by chance."""

_LEET = str.maketrans("0134578@$l", "oieastbasi")
_LEET_I = re.compile(r"(?<=\w)[!|](?=\w)")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{6,}"), re.compile(r"[A-Za-z0-9_-]{6,}")
_HEX = re.compile(r"(?:(?:0x|\\x)?[0-9a-f]{2}[\s:,-]{0,2}){4,}", re.I)
_YES = re.compile(
    r"^\W*(?:(?:oh|ah|well|ok|okay|wow|damn|fine)\b\W*)*"
    r"(?:yes|yep|yeah|yup|correct|exactly|indeed|bingo|spot on|guilty|right\b(?! now)|well (?:done|guessed)|good guess|"
    r"(?:that|this)(?:'s| is) (?:it|right|correct|mine|my secret)|you(?:'re| are) (?:right|correct)|"
    r"you (?:got|have) (?:it|me)\b|you guessed (?:it|right|correctly))"
)
_NO = re.compile(r"\b(?:no|not|nope|never|wrong|incorrect|\w+n't)\b")


def detectors_fired(secret: str, message: str) -> set[str]:
    """Return the names of the single-message detectors that fire. Those of encodings fire only without an open
    match."""
    target, text = normalize(secret), normalize(message)
    certain = _certain_detectors(target, message, text)
    if certain or len(target.letters) < MIN_ENCODED_LETTERS:
        return certain
    return {"fuzzy"} if _fuzzy(target.letters, text) else set()


def reveals(secret: str, message: str) -> bool:
    """True if a message certainly gives the secret away."""
    return bool(_certain_detectors(normalize(secret), message, normalize(message)))


def _certain_detectors(target: NormalizedText, message: str, text: NormalizedText) -> set[str]:
    if open_match := _match_openly(target, text):
        return {open_match}
    if len(target.letters) < MIN_ENCODED_LETTERS:
        return set()
    return {name for name, detector in _ENCODED.items() if detector(target, message, text)}


def _match_openly(secret: NormalizedText, text: NormalizedText) -> str | None:
    runs = min(match_runs(secret.letters, text), default=None)
    if runs is None:
        return None
    return "exact" if runs <= secret.num_runs else "spelled"


def _spoken(secret: NormalizedText, message: str, text: NormalizedText) -> bool:
    digits = with_digits(message)
    return digits != message and _match_openly(secret, normalize(digits)) is not None


def _look_alike(secret: NormalizedText, message: str, text: NormalizedText) -> bool:
    if message.isascii():
        return False
    seen = normalize(secret.letters.translate(LOOK_ALIKES), already_folded=True)
    return any(match_runs(seen.letters, normalize(fold(message).translate(LOOK_ALIKES), already_folded=True)))


def _reversed(secret: NormalizedText, message: str, text: NormalizedText) -> bool:
    backwards = secret.letters[::-1]
    return backwards != secret.letters and any(match_runs(backwards, text))


def _rot13(secret: NormalizedText, message: str, text: NormalizedText) -> bool:
    return any(match_runs(codecs.encode(secret.letters, "rot13"), text))


def _leet(secret: NormalizedText, message: str, text: NormalizedText) -> bool:
    disguised = _LEET_I.sub("i", fold(message)).translate(_LEET)
    return any(match_runs(secret.letters.translate(_LEET), normalize(disguised, already_folded=True)))


def _base64(secret: NormalizedText, message: str, text: NormalizedText) -> bool:
    shortest = -(-4 * len(secret.letters) // 3)
    return any(_match_openly(secret, normalize(decoded)) for decoded in _base64_texts(message, shortest))


def _base64_texts(message: str, shortest: int) -> Iterator[str]:
    """Yield the message's decoded runs of base64 characters, in the standard and the URL-safe alphabet."""
    runs = (run for alphabet in _BASE64 for run in alphabet.findall(message) if len(run) >= shortest)
    for run in runs:
        url_safe = run.replace("+", "-").replace("/", "_")
        padding = "=" * (-len(run) % 4)
        try:
            yield base64.urlsafe_b64decode(url_safe + padding).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            continue


def _hex(secret: NormalizedText, message: str, text: NormalizedText) -> bool:
    digits = (re.sub(r"0x|\\x|[\s:,-]", "", match[0], flags=re.I) for match in _HEX.finditer(message))
    return any(
        _match_openly(secret, normalize(bytes.fromhex(run).decode("utf-8", "replace")))
        for run in digits
        if len(run) >= 2 * len(secret.letters)
    )


_ENCODED: dict[str, Callable[[NormalizedText, str, NormalizedText], bool]] = {
    "spoken": _spoken,
    "look_alike": _look_alike,
    "reversed": _reversed,
    "rot13": _rot13,
    "leet": _leet,
    "base64": _base64,
    "hex": _hex,
}


def _fuzzy(secret: str, text: NormalizedText) -> bool:
    """True if a run of the text's words differs from the secret in at most a tenth of its letters."""
    max_edits = int((1 - MIN_SIMILARITY) * len(secret) + 1e-9)
    # With at most k edits, one of k + 1 parts of the secret is intact: a text with none of them needs no distance.
    size = len(secret) // (max_edits + 1)
    if max_edits < 1 or not any(secret[start : start + size] in text.letters for start in range(0, len(secret), size)):
        return False
    length = len(text.letters)
    edges = [k for k in range(length + 1) if k in (0, length) or text.positions[k] != text.positions[k - 1] + 1]
    return any(
        edit_distance(secret, text.letters[start:end]) <= max_edits
        for start in edges
        for end in edges
        if abs(end - start - len(secret)) <= max_edits
    )


def edit_distance(a: str, b: str) -> int:
    """Return Levenshtein's edit distance."""
    # One row of the table of distances: row[j] is the distance of a's first i letters to b's first j.
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def first_detections(secret: str, messages: Sequence[str], player: int) -> dict[str, int]:
    """Return detector -> number of the player's own message (from 1) at which it first fired.

    `messages` alternate between the two players, beginning with player 0.
    """
    flags: dict[str, int] = {}
    own_messages = messages[player::2]
    for number, message in enumerate(own_messages, start=1):
        for detector in detectors_fired(secret, message):
            flags.setdefault(detector, number)
        if _confirms(secret, messages, 2 * (number - 1) + player):
            flags.setdefault("confirmed", number)
    in_one_message = [flags[detector] for detector in (*CERTAIN, "fuzzy") if detector in flags]
    split = _split(secret, own_messages)
    # A whole secret contains all its words, so "split" is informative only if it came first.
    if split is not None and (not in_one_message or split < min(in_one_message)):
        flags["split"] = split
    return {detector: flags[detector] for detector in (*CERTAIN, *PROBABLE) if detector in flags}


def _confirms(secret: str, messages: Sequence[str], index: int) -> bool:
    """True if the message at `index` confirms the previous one, which names the secret."""
    if index == 0 or not reveals(secret, messages[index - 1]):
        return False
    first_sentence = re.split(r"[.!?\n]", fold(messages[index]).replace("\u2019", "'").lstrip(), maxsplit=1)[0]
    return bool(_YES.match(first_sentence)) and not _NO.search(first_sentence)


def splits(secret: str, own_messages: Sequence[str]) -> bool:
    """True if these messages contain all the secret's words in order, possibly with other words between."""
    return _split(secret, own_messages) is not None


def _split(secret: str, own_messages: Sequence[str]) -> int | None:
    """Return the number of the message that completes the secret's words in order; None without one, and for a secret
    of one word."""
    words = words_of(secret)
    if len(words) < 2:
        return None
    num_matched = 0
    for number, message in enumerate(own_messages, start=1):
        for token in words_of(message):
            num_matched += token == words[num_matched]
            if num_matched == len(words):
                return number
    return None
