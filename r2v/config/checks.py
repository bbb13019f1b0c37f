"""What every section's own checks are made of."""

from __future__ import annotations

from r2v.errors import UsageError

RUNTIME = {"runtime": True}
"""Field metadata of what does not change results: paths, device, workers, retries."""


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
