"""Checks: the rules that config sections are checked with. Each raises UsageError in one line: key, value, remedy."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from r2v.errors import UsageError, nearest

RUNTIME = {"runtime": True}
"""Field metadata of what does not change results, such as paths, device, workers and retries: not in fingerprints."""
IF_GIVEN = {"if_given": True}
"""Field metadata of a key that is in fingerprints only where it is set (not None, not {}): adding it changed none."""


def check(condition: bool, key: str, rule: str, got: object) -> None:
    """Raises UsageError "<key> <rule>, got <got>" where the condition does not hold."""
    if not condition:
        raise UsageError(f"{key} {rule}, got {got}")


def probability(key: str, value: float) -> None:
    """A value in [0, 1], ends included."""
    check(0.0 <= value <= 1.0, key, "must be in [0, 1]", value)


def positive(key: str, value: float) -> None:
    """A value above 0."""
    check(value > 0, key, "must be above 0", value)


def not_negative(key: str, value: float) -> None:
    """A value of 0 or more."""
    check(value >= 0, key, "must be at least 0", value)


def members(key: str, values: Iterable[str], allowed: Collection[str]) -> None:
    """A list of known names. The line says the key, what was got, what is allowed, and the nearest allowed name."""
    for value in values:
        if value not in allowed:
            hint = nearest(value, allowed)
            remedy = f"; {hint}" if hint.startswith("did you mean") else ""
            raise UsageError(f"{key}: got {value}, allowed: {', '.join(allowed)}{remedy}")
