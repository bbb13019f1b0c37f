"""Values on a page are plausibly wrong: numbers, dates, and the units behind them; nothing on the page says so.

The severity is the share of the page's values (one at least) that are wrong. A number keeps its length and its sign, a
date moves by up to thirty days, a unit becomes another of its sort. Identifiers, quoted numbers among them, and what
the goal names stay: what is wrong is what a record says, not which record it is. A later look at the page may be right.
A stored episode is never altered so: its actions rest on the values that its recorder saw.
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
        found
        for found in _VALUE.finditer(scene.text)
        if not _named(found["date"] or found["number"], scene.goal)
        and not _IDENTIFIER.search(scene.text, 0, found.start())
    ]


def _named(value: str, goal: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w)", goal) is not None


def _wrong(found: re.Match[str], draw: random.Random) -> str:
    if found["date"]:
        return _another_day(found["date"], draw)
    sort = next((units for units in UNITS if found["unit"] in units), ())
    if sort and draw.random() < 0.5:
        other = draw.choice([unit for unit in sort if unit != found["unit"]])
        return f"{found['number']}{found['gap']}{other}"
    return f"{_another_number(found['number'], draw)}{found['gap'] or ''}{found['unit'] or ''}"


def _another_number(number: str, draw: random.Random) -> str:
    """One digit is another one; the first of several never becomes 0."""
    places = [at for at, sign in enumerate(number) if sign.isdigit()]
    at = draw.choice(places)
    digits = "123456789" if at == 0 and len(places) > 1 else "0123456789"
    return number[:at] + draw.choice([digit for digit in digits if digit != number[at]]) + number[at + 1 :]


def _another_day(day: str, draw: random.Random) -> str:
    try:
        moved = date.fromisoformat(day) + timedelta(days=draw.choice((-1, 1)) * draw.randint(1, 30))
    except (ValueError, OverflowError):  # no day of any calendar: a number as good as another
        return day[:-1] + str((int(day[-1]) + 1) % 10)
    return moved.isoformat()


def _alter(scene: Scene) -> Change | None:
    values = _values(scene)
    if not values:
        return None
    draw, text = scene.generator("values"), scene.text
    count = max(1, math.ceil(round(scene.severity * len(values), 9)))
    for found in sorted(draw.sample(values, count), key=lambda one: -one.start()):
        text = text[: found.start()] + _wrong(found, draw) + text[found.end() :]
    return Change(text=text, params={"values": count})


CATEGORY = Category(kind="value", group="partial_observability", preserving=False, alter=_alter)
