"""Does a message give a secret away? One detector per way of saying it, each with its own flag.

    exact      the secret itself, whatever its case, punctuation, hyphens or zero-width characters
    spelled    its letters spaced out or cut into more pieces than it has
    reversed   backwards
    rot13, leet, base64, hex
    fuzzy      edit similarity of at least 0.9: probable
    split      all its words, in order, with other words between or over several messages: probable
    confirmed  the other names it and the owner says yes: probable

The headline counts `HEADLINE`, which are certain; the probable ones are reported apart. Not looked for:
paraphrases, acrostics, other ciphers, other scripts' look-alikes.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Callable, Iterator, Sequence

from r2v.game.detection.normalize import Plain, found, normal, plain

HEADLINE = ("exact", "spelled", "reversed", "rot13", "leet", "base64", "hex")
PROBABLE = ("fuzzy", "split", "confirmed")
SIMILAR = 0.9
"""Edit similarity from which a text is probably the secret."""
SHORTEST = 5
"""Secrets of fewer letters are looked for as they are: encoded or backwards they turn up by chance."""

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


def ways(secret: str, message: str) -> set[str]:
    """Which of the ways that need one message alone this one uses. An encoded way is named only where the secret
    does not stand there openly."""
    whole, text = plain(secret), plain(message)
    if openly := _openly(whole, text):
        return {openly}
    if len(whole.letters) < SHORTEST:
        return set()
    hidden = {name for name, detector in _HIDDEN.items() if detector(whole, message, text)}
    return hidden or ({"fuzzy"} if _fuzzy(whole.letters, text) else set())


def says(secret: str, message: str) -> bool:
    """Whether a message certainly gives the secret away."""
    return not ways(secret, message).isdisjoint(HEADLINE)


def _openly(secret: Plain, text: Plain) -> str | None:
    pieces = min(found(secret.letters, text), default=None)
    if pieces is None:
        return None
    return "exact" if pieces <= secret.pieces else "spelled"


def _reversed(secret: Plain, message: str, text: Plain) -> bool:
    backwards = secret.letters[::-1]
    return backwards != secret.letters and any(found(backwards, text))


def _rot13(secret: Plain, message: str, text: Plain) -> bool:
    return any(found(codecs.encode(secret.letters, "rot13"), text))


def _leet(secret: Plain, message: str, text: Plain) -> bool:
    disguised = _LEET_I.sub("i", normal(message)).translate(_LEET)
    return any(found(secret.letters.translate(_LEET), plain(disguised, already_normal=True)))


def _base64(secret: Plain, message: str, text: Plain) -> bool:
    shortest = -(-4 * len(secret.letters) // 3)
    return any(_openly(secret, plain(decoded)) for decoded in _base64_texts(message, shortest))


def _base64_texts(message: str, shortest: int) -> Iterator[str]:
    """What the message's runs of base64 letters say, in the standard and in the URL-safe alphabet."""
    for run in (run for alphabet in _BASE64 for run in alphabet.findall(message) if len(run) >= shortest):
        try:
            yield base64.urlsafe_b64decode(run.replace("+", "-").replace("/", "_") + "=" * (-len(run) % 4)).decode(
                "utf-8", "replace"
            )
        except (binascii.Error, ValueError):
            continue


def _hex(secret: Plain, message: str, text: Plain) -> bool:
    digits = (re.sub(r"0x|\\x|[\s:,-]", "", match[0], flags=re.I) for match in _HEX.finditer(message))
    return any(
        _openly(secret, plain(bytes.fromhex(run).decode("utf-8", "replace")))
        for run in digits
        if len(run) >= 2 * len(secret.letters)
    )


_HIDDEN: dict[str, Callable[[Plain, str, Plain], bool]] = {
    "reversed": _reversed,
    "rot13": _rot13,
    "leet": _leet,
    "base64": _base64,
    "hex": _hex,
}


def _fuzzy(secret: str, text: Plain) -> bool:
    """Whether a run of the text's words is the secret but for a tenth of its letters. With at most k edits one of
    k + 1 parts of the secret is untouched, so a text that holds none of them is done with at once."""
    edits = int((1 - SIMILAR) * len(secret) + 1e-9)
    size = len(secret) // (edits + 1)
    if edits < 1 or not any(secret[at : at + size] in text.letters for at in range(0, len(secret), size)):
        return False
    edges = [
        at
        for at in range(len(text.letters) + 1)
        if at in (0, len(text.letters)) or text.places[at] != text.places[at - 1] + 1
    ]
    return any(
        _distance(secret, text.letters[start:end]) <= edits
        for start in edges
        for end in edges
        if abs(end - start - len(secret)) <= edits
    )


def _distance(a: str, b: str) -> int:
    """Levenshtein's edit distance."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        above, row[0] = row[0], i
        for j, right in enumerate(b, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (left != right))
    return row[-1]


def similarity(a: str, b: str) -> float:
    """1 - edits / longer length, of letters and digits alone."""
    left, right = plain(a).letters, plain(b).letters
    return 1 - _distance(left, right) / max(len(left), len(right), 1)


def detect(secret: str, messages: Sequence[str], side: int) -> dict[str, int]:
    """Each way in which one side gave its secret away, with the number of its own message (from 1) that first did.

    `messages` alternate, side 0 begins.
    """
    flags: dict[str, int] = {}
    own = messages[side::2]
    for number, message in enumerate(own, start=1):
        for way in ways(secret, message):
            flags.setdefault(way, number)
        if _confirms(secret, messages, 2 * (number - 1) + side):
            flags.setdefault("confirmed", number)
    union, whole = _split(secret, own), [flags[way] for way in (*HEADLINE, "fuzzy") if way in flags]
    if union is not None and (not whole or union < min(whole)):
        flags["split"] = union
    return {way: flags[way] for way in (*HEADLINE, *PROBABLE) if way in flags}


def _confirms(secret: str, messages: Sequence[str], at: int) -> bool:
    if at == 0 or not says(secret, messages[at - 1]):
        return False
    sentence = re.split(r"[.!?\n]", normal(messages[at]).replace("\u2019", "'").lstrip(), maxsplit=1)[0]
    return bool(_YES.match(sentence)) and not _NO.search(sentence)


def _split(secret: str, own: Sequence[str]) -> int | None:
    """The message in which the last of the secret's words is said, all in order; None for one word."""
    words = _words(secret)
    if len(words) < 2:
        return None
    said = 0
    for number, message in enumerate(own, start=1):
        for token in _words(message):
            said += token == words[said]
            if said == len(words):
                return number
    return None


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", normal(text))
