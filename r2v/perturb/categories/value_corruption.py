"""Value corruption: plausible wrong numbers, dates and units on a page, without a sign that they are wrong.

The severity is the share of the page's values (at least one) that are wrong. A number keeps its length and its sign, a
date moves by up to thirty days, a unit becomes another of its kind. Identifiers, also quoted numbers, and values in the
goal stay: a record's contents are wrong, never its identity. A later view of the page may be right. Stored episodes are
not altered this way, since their actions depend on the values that the recorder saw.
"""

from __future__ import annotations

import math
import random
import re
from datetime import date, timedelta

from r2v.perturb.category import Category, Change, Scene

UNITS = (
    ("mg", "g", "kg", "t"),
    ("mm", "cm", "m", "km"),
    ("seconds", "minutes", "hours", "days", "weeks", "months"),
    ("KB", "MB", "GB", "TB"),
    ("USD", "EUR", "GBP"),
)
_UNIT = "|".join(unit for sort in UNITS for unit in sort)
_VALUE = re.compile(
    rf"(?<![\w.\[#/-])(?:(?P<date>\d{{4}}-\d\d-\d\d)|(?P<number>\d+(?:[.,]\d+)*)(?:(?P<gap>\s?)(?P<unit>{_UNIT})\b)?)"
    r"(?![\w\]/-]|\.\w)"
)
_IDENTIFIER = re.compile(r'"(?:\w+_)?b?id"\s*:\s*"?$')


def _values(scene: Scene) -> list[re.Match[str]]:
    return [
        match
        for match in _VALUE.finditer(scene.text)
        if not _named(match["date"] or match["number"], scene.goal)
        and not _IDENTIFIER.search(scene.text, 0, match.start())
    ]


def _named(value: str, goal: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w)", goal) is not None


def _wrong(match: re.Match[str], draw: random.Random) -> str:
    if match["date"]:
        return _another_day(match["date"], draw)
    sort = next((units for units in UNITS if match["unit"] in units), ())
    if sort and draw.random() < 0.5:
        other = draw.choice([unit for unit in sort if unit != match["unit"]])
        return f"{match['number']}{match['gap']}{other}"
    return f"{_another_number(match['number'], draw)}{match['gap'] or ''}{match['unit'] or ''}"


def _another_number(number: str, draw: random.Random) -> str:
    """Return the number with one digit changed; the first of several never becomes 0."""
    places = [at for at, sign in enumerate(number) if sign.isdigit()]
    at = draw.choice(places)
    digits = "123456789" if at == 0 and len(places) > 1 else "0123456789"
    return number[:at] + draw.choice([digit for digit in digits if digit != number[at]]) + number[at + 1 :]


def _another_day(day: str, draw: random.Random) -> str:
    try:
        moved = date.fromisoformat(day) + timedelta(days=draw.choice((-1, 1)) * draw.randint(1, 30))
    except (ValueError, OverflowError):  # an impossible date: change its last digit
        return day[:-1] + str((int(day[-1]) + 1) % 10)
    return moved.isoformat()


def _alter(scene: Scene) -> Change | None:
    values = _values(scene)
    if not values:
        return None
    draw, text = scene.generator("values"), scene.text
    count = max(1, math.ceil(round(scene.severity * len(values), 9)))
    for match in sorted(draw.sample(values, count), key=lambda match: -match.start()):
        text = text[: match.start()] + _wrong(match, draw) + text[match.end() :]
    return Change(text=text, params={"values": count})


CATEGORY = Category(kind="value", group="partial_observability", preserving=False, alter=_alter)
