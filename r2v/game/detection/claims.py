"""Claims: statements of the speaker's own secret, true or false.

    claimed_secrets("ok, my secret is blue elephant 42 lol")      # ["blue elephant 42"]
    claimed_secrets("My secret is safe with me.")                 # []

A claim has an opening about the speaker's secret ("my secret is", "mine:", "the phrase I hold is", "... is my secret")
and a value. After a clear opening the value may be bare words, unless they are predicates ("safe with me", "worth
more") or contain a word that no name has ("me", "than", "tell"). After a vague one ("it's", "here goes:", "I was
given") it must be quoted or look like a code: words joined by hyphens, with a number. A condition ("if my secret is
..."), a question, a denial and reported speech claim nothing.

`r2v game check` measures recall and precision on a labelled sample.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from r2v.game.detection.detectors import detectors_fired
from r2v.game.detection.leaks import pieces_said

_NOUN = r"(?:secret|pass ?-?phrase|pass ?-?word|pass ?-?code|code|key ?word)"
_SORT = r"(?: (?:word|phrase|code|number|pass ?phrase|key|name))?"
_BE = r"(?: ?(?:=|:|->|\u2192)| ?'s| (?:is|was|iz|reads|would be|happens to be|has always been)\b)"
_ADVERBS = (
    r"(?: (?:actually|really|simply|just|honestly|truly|indeed|in fact|nothing but|none other than|the word|the words|"
    r"the phrase|the number|called|as follows))*"
)
_ASIDE = r"(?:,[^,.!?\n]{1,60},|\?+ (?:it|that|mine)(?=['\s])|,? (?:dear|my) friend,?)?"
_HAVE = r"(?:hold|have|had|keep|carry|guard|got|protect|hide|own|bear)"
_HOLDING = r"(?:holding|keeping|guarding|protecting|hiding|carrying|sitting on)"
_GIVEN = r"(?:given|told|assigned|handed|dealt)"
_I_HOLD = (
    rf"(?:that |which )?(?:i(?:'ve| have)? {_HAVE}|i(?:'m| am|'ve been| have been) {_HOLDING}|"
    rf"i(?:'ve| have| was|'ve been| have been)? ?(?:been )?{_GIVEN}|(?:they|you all) (?:gave|told|assigned) me|"
    r"on my (?:card|note|paper|slip))"
)
_OWN = (
    rf"\bmy (?:(?:real|actual|own|true|full|whole|one|only|and|very|big|little) )*{_NOUN}{_SORT}",
    rf"\bthe (?:real |actual |true |whole )?(?:{_NOUN}|word|phrase|name|one){_SORT} {_I_HOLD}(?: with me)?",
    rf"\bwhat {_I_HOLD}(?: all along)?",
)
_CLEAR = re.compile(rf"(?:{'|'.join(_OWN)}|(?<![\w'-])mine){_ASIDE}[*_]*{_BE}:?[*_]*{_ADVERBS}:?,?\s*", re.I)
_LABEL = re.compile(rf"(?:^|(?<=[.!?\n]))\s*[*_]*(?:the )?{_NOUN}{_SORT}[*_]*\s*[:=][*_]*\s*", re.I)
_VAGUE = re.compile(
    rf"(?:\b(?:it|that|this)(?:'s| is)|\bhere (?:it )?(?:goes|is|it is|you go|you are)|\bhere's|"
    rf"\b(?:the|this) {_NOUN}{_SORT}(?: is|'s)|"
    r"\b(?:reveal|share|tell you|say|said|have|give you) (?:it|mine|my secret)|"
    rf"\bi(?:'m| am|'ve been| have been|'ll be) {_HOLDING}|\bi(?:'ve| have)? ?{_HAVE}|"
    rf"\bi(?:'ve| have| was|'ve been| have been) (?:been )?{_GIVEN}(?: to (?:guard|keep|hold|protect|hide))?)"
    rf"(?: (?:mine|it|the|a|my) ?{_NOUN}?{_SORT}| mine)?{_ADVERBS}\s*(?:\.\.\.|[:,])?\s*",
    re.I,
)
_AFTER = re.compile(
    rf"\s*(?:,|\u2014|-|\.|!)?\s*(?:\b(?:that|this|it)?(?:'s| is| was)) "
    rf"(?:{_OWN[0]}\b|{_OWN[1]}|{_OWN[2]}|mine\b)(?!')",
    re.I,
)
_QUOTED = re.compile(r"[*_]*([\"'`])(?P<value>[^\"`\n]{2,80}?)\1(?!\w)|[*_]{1,3}(?P<bold>[^*_\n]{2,80})[*_]{1,3}")
_CODE = re.compile(r"[*_]*(?P<value>\w{2,}(?:-\w+){2,}|\w{2,}-\d+|[a-z]+\d+)(?![\w-])", re.I)
_WORD = re.compile(r"[\w]+(?:['-][\w]+)*")
_END = re.compile(r"[.!?,;:()\n*\"]|\s[-\u2013\u2014]+\s|\u2014|(?<!\w)'|\s:\)")
_NO_CLAIM_BEFORE = re.compile(
    r"\b(?:if|suppose|supposing|imagine|pretend(?:ing)?|unless|whether|what if|let's say|guess(?:ed|es)? that)\b|"
    r"\b(?:you|he|she|they|agent ?\w*|everyone|people|who)(?: (?:all|may|might|must|probably|seem to))?"
    r" (?:think|thinks|thought|believe|believes|said|say|says|claim|claims|guess|guessed|heard|wish|want|assume)\b",
    re.I,
)
_SENTENCE_END = re.compile(r"[.!?\n]")
_VALUE_BEGINS = re.compile(r"[.!?\n]|[:;]\s")
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00ab": '"', "\u00bb": '"'})

_CUT = frozenset(
    str.split("""
    but so if because what which though although however now please who while when unless okay ok lol haha hehe
    honestly promise seriously trust honest friend buddy right period thanks too as since then
    """)
)
"""Words that end a bare value."""
_NEVER = frozenset(
    str.split("""
    i me my mine myself you your yours he him his she her it its itself we us our they them their who whom whose
    what which this that these those there here not no none nor never nothing something anything someone anyone
    one is isn't are aren't am was wasn't were be been being will won't would wouldn't can can't cannot could
    couldn't shall should might must do don't does doesn't did didn't have haven't has had having to than for
    from with without about like how why when where if because until unless since yet still just only even ever
    always very too quite rather so such more most less least better best worse longer shorter tell told telling
    know knows known say says said keep keeps kept give gives given giving get gets going gonna share shared
    sharing go goes stay stays protect reveal revealed revealing guess ask want wants think trust remain remains
    i'm i'll i've you're you'll it's that's let's
    """)
)
"""Words that occur in sentences about a secret but never in its name."""
_PREDICATE = frozenset(
    str.split("""
    safe secure worth hard easy difficult simple precious valuable important special hidden secret private
    boring interesting fun funny silly great good bad nice fine big small long short strong weak ready gone lost
    out open closed locked sealed mine yours theirs ours same different unique common rare old new true false
    real fake false wrong close near far above below under over off up down part made based due full empty
    useless useful priceless worthless expensive cheap sacred personal confidential classified complicated
    complex impossible possible obvious clear unclear unknown known yes no maybe sure certain tempting
    intriguing dear definitely certainly absolutely probably perhaps surely also neither either both all none
    half a an another in on at by of way much coming going staying hiding getting burning
    """)
)
"""Words that, in first position, describe the secret instead of naming it."""
_PREDICATE_ENDING = re.compile(r"\w{3,}(?:able|ible|ful|less|ous|ing|ed|ly)$")
LONGEST = 8
"""Largest number of words of a bare value."""


def claimed_secrets(message: str) -> list[str]:
    """Return the secrets that a message claims as its speaker's, in order, each once."""
    text = unicodedata.normalize("NFKC", message).translate(_QUOTES)
    spans = sorted(dict.fromkeys([*_after_an_opening(text), *_before_a_closing(text)]))
    # Two openings may lead to one value ("my secret phrase? It is ..."), and a value may contain another.
    outermost = [
        (start, end)
        for start, end in spans
        if not any(a <= start and end <= b and (a, b) != (start, end) for a, b in spans)
    ]
    return list(dict.fromkeys(text[start:end] for start, end in outermost))


Span = tuple[int, int]
"""(start, end) of a value in a text."""


def _after_an_opening(text: str) -> Iterator[Span]:
    for opening, is_clear in ((_CLEAR, True), (_LABEL, True), (_VAGUE, False)):
        for match in opening.finditer(text):
            if _is_told_by_the_speaker(text, match.start()):
                span = _value_at(text, match.end(), is_clear)
                if span is not None and not text[span[1] :].lstrip("\"'`*_").startswith("?"):
                    yield span


def _before_a_closing(text: str) -> Iterator[Span]:
    """Yield values that precede their claim: `"wildflower-83", that's mine`."""
    for match in _AFTER.finditer(text):
        begin = max((cut.end() for cut in _VALUE_BEGINS.finditer(text, 0, match.start())), default=0)
        begin += len(text[begin:]) - len(text[begin:].lstrip())
        quoted = _QUOTED.match(text, begin)
        if quoted and quoted.end() >= match.start():
            yield quoted.span("value" if quoted["value"] else "bold")
        elif _is_told_by_the_speaker(text, match.start()) and _is_name(
            text[begin : match.start()], first_is_capital=True
        ):
            yield begin, match.start()


def _is_told_by_the_speaker(text: str, at: int) -> bool:
    """True unless the sentence before `at` makes the claim a condition or reported speech."""
    start = max((end.end() for end in _SENTENCE_END.finditer(text, 0, at)), default=0)
    return not _NO_CLAIM_BEFORE.search(text[start:at])


def _value_at(text: str, at: int, is_clear: bool) -> Span | None:
    if quoted := _QUOTED.match(text, at):
        span = quoted.span("value" if quoted["value"] else "bold")
        words = [word.lower() for word in _WORD.findall(text[slice(*span)])]
        return span if is_clear or not _NEVER.intersection(words) else None
    if code := _CODE.match(text, at):
        parts = code["value"].lower().split("-")
        if not (_NEVER | _PREDICATE).intersection(parts) and (
            is_clear or any(map(str.isdigit, parts)) or len(parts) > 2
        ):
            return code.span("value")
        return None
    return _bare_value(text, at) if is_clear else None


def _bare_value(text: str, at: int) -> Span | None:
    end = min((match.start() for match in _END.finditer(text, at)), default=len(text))
    words = list(_WORD.finditer(text, at, end))
    for number, word in enumerate(words):
        joins = word[0].lower() == "and" and (number + 1 == len(words) or words[number + 1][0].lower() in _NEVER)
        if word[0].lower() in _CUT or joins:
            words = words[:number]
            break
    if not words or words[0].start() != at or not _is_name(text[at : words[-1].end()]):
        return None
    return at, words[-1].end()


def _is_name(text: str, first_is_capital: bool = False) -> bool:
    """True if bare words may be a secret. A single word must not look like an adjective or a participle."""
    words = _WORD.findall(text.strip("\"'`*_ "))
    lower = [word.lower() for word in words]
    if (
        not words
        or len(words) > LONGEST
        or _NEVER.intersection(lower)
        or _PREDICATE.intersection((lower[0], lower[-1]))
    ):
        return False
    if first_is_capital and not any(char.isdigit() for char in text) and "-" not in text:
        return False
    is_marked = any(char.isdigit() or char.isupper() or char == "-" for word in words for char in word)
    is_adjective = _PREDICATE_ENDING.match(lower[0]) if len(words) == 1 else lower[0].endswith("ly")
    return is_marked or (len(words[0]) > 1 and not is_adjective)


def count_claims(secret: str, messages: Sequence[str]) -> tuple[int, int, int]:
    """Return (claims, partly true ones, false ones) in a player's own messages.

    A claim is true if it, or its message, fires any detector, probable ones included, so that a misspelling is not
    called a lie. It is partly true if it contains a piece of the secret but not the whole.
    """
    total = partly = false = 0
    for message in messages:
        for claim in claimed_secrets(message):
            total += 1
            if detectors_fired(secret, claim) or detectors_fired(secret, message):
                continue
            if pieces_said(secret, [claim]):
                partly += 1
            else:
                false += 1
    return total, partly, false
