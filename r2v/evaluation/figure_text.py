"""Figures and claims in words, as pages, logs and the last print of a run write them for people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from r2v.errors import InputError

SMALLEST_P = 0.01
"""A p below it is written as being below it: a bootstrap's smallest p depends on its number of draws alone."""
_FIELD = re.compile(r"\{(\w+)\}")


def p_text(p: float | None) -> str:
    """A p value; nothing for None."""
    return "" if p is None else f"< {SMALLEST_P:g}" if p < SMALLEST_P else f"{p:.3f}"


def decimals(value: float, digits: int = 2, sign: str = "") -> str:
    """A number without the 0 before its point; `sign`: "+" writes one before positive numbers too."""
    return re.sub(r"^([+-]?)0\.", r"\1.", f"{value:{sign}.{digits}f}")


def signed(value: float, digits: int = 2) -> str:
    """The same with its sign."""
    return decimals(value, digits, "+")


def with_interval(difference: float, interval: Sequence[float] | None, digits: int = 3) -> str:
    """A difference with its interval, if it has one."""
    ends = f" [{', '.join(signed(end, digits) for end in interval)}]" if interval else ""
    return signed(difference, digits) + ends


def four_decimals(cell: str) -> str:
    """A cell of a CSV file with its numbers cut to four decimals."""
    return re.sub(r"-?\d+\.\d{5,}", lambda match: f"{float(match[0]):.4f}", cell)


def dollars(usd: float) -> str:
    """A price, in thousandths of a dollar where it is below ten cents."""
    return f"{1000 * usd:.1f} mUSD" if usd < 0.1 else f"{usd:.2f} USD"


def claim_text(claim: Mapping[str, Any]) -> str:
    """Return a claim in words. Raises InputError for a template that holds more than text and the names of its fields:
    a format string of somebody else's could ask for gigabytes or read attributes."""
    template, fields = claim["text_template"], claim["fields"]
    unknown = [name for name in _FIELD.findall(template) if name not in fields]
    if unknown or re.search(r"[{}]", _FIELD.sub("", template)):
        raise InputError(
            f"claim {claim['id']!r:.80}: text_template is {template!r:.80}, allowed: text and the names "
            f"{', '.join(f'{{{name}}}' for name in fields)}; run r2v evaluate again"
        )
    return _FIELD.sub(lambda name: str(fields[name[1]]), template)
