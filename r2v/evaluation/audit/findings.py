"""Findings of an audit, by kind, and the values that it could not prove.

A folder may hold a lie in each of a million episodes, so a kind keeps its count and its first example, and the whole
is one line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from r2v.constraints import shown

_LONGEST = 240
"""Characters of an example: enough to find it in its file."""


@dataclass
class Findings:
    """Problems by kind. `unproven`: the values that rest on the folder's word alone, each with its reason."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    unproven: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, text: str) -> None:
        """One more of this kind; the first is the one that is shown."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.examples.setdefault(kind, shown(text, _LONGEST))

    def extend(self, kind: str, texts: Iterable[str]) -> None:
        """Several of one kind."""
        for text in texts:
            self.add(kind, text)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        total = sum(self.counts.values())
        kinds = (
            f"{kind}: {self.examples[kind]}" + (f" (and {count - 1} more)" if count > 1 else "")
            for kind, count in self.counts.items()
        )
        return f"{total} finding{'s' if total > 1 else ''}: {'; '.join(kinds)}"
