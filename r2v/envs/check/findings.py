"""Findings of a contract check: faults and notes without repetition, in the order of their discovery."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from r2v.envs.guard import described

RAISED = object()
"""Result of a call that raised."""


@dataclass
class CheckFindings:
    """Faults, notes and grader outcomes of a check that played `num_episodes` episodes."""

    places: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Fault -> its places in order of discovery; "" for a fault without a place."""
    notes: list[str] = field(default_factory=list)
    num_episodes: int = 0
    outcomes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Player -> (successes, plays) of the grader's check."""

    @property
    def faults(self) -> list[str]:
        """Return the faults as sentences, in the order of their discovery."""
        return [f"{text}{_places_suffix(places)}" for text, places in self.places.items()]

    def fault(self, text: str | None, where: str = "") -> bool:
        """Add the fault `text` unless it is None, and return True if one was added. Equal texts become one sentence
        with the first place and the number of others, so `text` must not name a task; `where` does."""
        if text is not None:
            self.places[text].append(where)
        return text is not None

    def note(self, text: str) -> None:
        """Add a note."""
        if text not in self.notes:
            self.notes.append(text)

    def call(self, method: str, call: Callable[[], Any], where: str = "") -> Any:
        """Return the call's result; if it raises, add a fault that names the exception and return RAISED."""
        try:
            return call()
        except Exception as error:  # any exception of a user's benchmark is a finding
            self.fault(f"{method} raised {described(error)}", where)
            return RAISED


def _places_suffix(places: list[str]) -> str:
    """Return a fault's suffix: its first place, and the count of others."""
    others = len(dict.fromkeys(places)) - 1
    return f" ({places[0]}{f', and {others} more' if others else ''})" if places[0] else ""
