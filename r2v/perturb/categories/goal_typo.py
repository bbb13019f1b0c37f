"""Goal typos: ceil(severity x words) slips in the goal, never in quotes, numbers or addresses.

A slip swaps two letters, drops one, doubles one, or hits a neighbouring key. The parts that identify a task (quoted
strings, digits, URLs) stay intact. A slip that would not change the word (two equal letters swapped, a letter without a
neighbour) is drawn again.
"""

from __future__ import annotations

import math
import random
import re

from r2v.perturb.category import Category, Change, Scene

_KEPT = re.compile(r"""\bhttps?://\S+ | \S*\d\S* | "[^"]*" | “[^”]*” | `[^`]*` | (?<!\w)'[^']*'(?!\w)""", re.VERBOSE)
_WORD = re.compile(r"[^\W\d_]{2,}")
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_BESIDE = {left: right for row in _KEYS for left, right in zip(row, row[1:] + row[-2], strict=True)}


def _words(goal: str) -> list[re.Match[str]]:
    protected = [match.span() for match in _KEPT.finditer(goal)]
    return [
        word
        for word in _WORD.finditer(goal)
        if not any(start < word.end() and word.start() < end for start, end in protected)
    ]


def _slip(word: str, draw: random.Random) -> str:
    slipped = word
    while slipped == word:
        slipped = _slip_once(word, draw)
    return slipped


def _slip_once(word: str, draw: random.Random) -> str:
    at = draw.randrange(len(word) - 1)
    match draw.choice(("swap", "drop", "double", "beside")):
        case "swap":
            return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        case "drop":
            return word[:at] + word[at + 1 :]
        case "double":
            return word[: at + 1] + word[at:]
        case _:
            return word[:at] + _BESIDE.get(word[at].lower(), word[at]) + word[at + 1 :]


def _alter(scene: Scene) -> Change | None:
    words = _words(scene.text)
    slips = min(len(words), math.ceil(round(scene.severity * len(words), 9)))
    if not slips:
        return None
    draw, goal = scene.generator("slips"), scene.text
    for word in sorted(draw.sample(words, slips), key=lambda word: -word.start()):
        goal = goal[: word.start()] + _slip(word.group(), draw) + goal[word.end() :]
    return Change(text=goal, params={"slips": slips})


CATEGORY = Category(kind="goal", group="distractor", preserving=False, alter=_alter)
