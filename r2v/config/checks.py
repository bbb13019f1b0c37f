"""Checks: the rules of config sections that concern more than one field, or a list of known names.

What one field may hold stands in its annotation (`r2v.constraints`). Each check raises UsageError in one line: key,
value, remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from r2v.constraints import NAME, Distinct, Name, Range, Seed, Text, shown
from r2v.errors import UsageError, nearest

RUNTIME = {"runtime": True}
"""Field metadata of what does not change results, such as paths, device, workers and retries: not in fingerprints."""
EVERYDAY_KEY = {"reader": "everyday"}
"""Field metadata of the keys that most projects set; the others are the cluster's if RUNTIME, else for research."""
IF_GIVEN = {"if_given": True}
"""Field metadata of a key that is in fingerprints only where it is set (not None, not {}): adding it changed none."""


Names = Annotated[list[Name], Distinct()]
Seeds = Annotated[list[Seed], Distinct()]
Budget = Annotated[float, Range(above=0, below=1)]
"""A share of steps: neither none nor all of them."""
Spec = Annotated[
    str,
    Text(
        longest=200,
        pattern=rf"{NAME.pattern}|\w[\w.-]*:[A-Za-z_]\w*",
        meaning="a name, or a path package.module:name",
    ),
]
"""A built-in name, or a dotted path that also names folders."""


def check(condition: bool, key: str, rule: str, got: object) -> None:
    """Raises UsageError "<key> <rule>, got <got>" where the condition does not hold."""
    if not condition:
        raise UsageError(f"{key} {rule}, got {shown(got)}")


def members(key: str, values: Iterable[str], allowed: Collection[str]) -> None:
    """A list of known names. The line says the key, what was got, what is allowed, and the nearest allowed name."""
    for value in values:
        if value not in allowed:
            hint = nearest(value, allowed)
            remedy = f"; {hint}" if hint.startswith("did you mean") else ""
            raise UsageError(f"{key}: got {value}, allowed: {', '.join(allowed)}{remedy}")


@dataclass(frozen=True, kw_only=True)
class OrAuto:
    """A word, auto unless another is named, or what another constraint allows."""

    rule: Range
    """The other constraint."""
    word: str = "auto"
    """The word."""

    def allows(self, value: Any) -> bool:
        """Whether it is the word, or the other one allows it."""
        return value == self.word if isinstance(value, str) else self.rule.allows(value)

    @property
    def text(self) -> str:
        """The word, or what the other one says."""
        return f"{self.word} or {self.rule.text}"
