"""Figures in words, as pages, logs and the last print of a run write them for people."""

from __future__ import annotations

import re

SMALLEST_P = 0.01
"""A p below it is written as being below it: a bootstrap's smallest p depends on its number of draws alone."""


def p_text(p: float | None) -> str:
    """A p value; nothing for None."""
    return "" if p is None else f"< {SMALLEST_P:g}" if p < SMALLEST_P else f"{p:.3f}"


def decimals(value: float, digits: int = 2, sign: str = "") -> str:
    """A number without the 0 before its point; `sign`: "+" writes one before positive numbers too."""
    return re.sub(r"^([+-]?)0\.", r"\1.", f"{value:{sign}.{digits}f}")


def signed(value: float, digits: int = 2) -> str:
    """The same with its sign."""
    return decimals(value, digits, "+")


def dollars(usd: float) -> str:
    """A price, in thousandths of a dollar where it is below ten cents."""
    return f"{1000 * usd:.1f} mUSD" if usd < 0.1 else f"{usd:.2f} USD"
