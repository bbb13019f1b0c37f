"""Findings of a contract check: faults and notes, each said once, in the order in which they were met."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from r2v.envs.guard import described

RAISED = object()
"""What a call gives that raised."""


@dataclass
class CheckFindings:
    """What a check came to. `num_episodes` were played for it."""

    places: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Fault -> where it was met, the first place first; "" where it has none."""
    notes: list[str] = field(default_factory=list)
    num_episodes: int = 0
    outcomes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Player -> (successes, plays) of the grader's check."""

    @property
    def faults(self) -> list[str]:
        """The faults as sentences, in the order in which they were met."""
        return [f"{text}{_said(places)}" for text, places in self.places.items()]

    def fault(self, text: str | None, where: str = "") -> bool:
        """Add a fault, where there is one; whether there was. The same one is told once, with its first place and how
        many others there are: `text` holds no name of a task, `where` does."""
        if text is not None:
            self.places[text].append(where)
        return text is not None

    def note(self, text: str) -> None:
        """Add a note."""
        if text not in self.notes:
            self.notes.append(text)

    def call(self, what: str, call: Callable[[], Any], where: str = "") -> Any:
        """What a call gives; RAISED, and a fault that names the exception, where it raises one."""
        try:
            return call()
        except Exception as error:  # whatever somebody else's code raises is a finding
            self.fault(f"{what} raised {described(error)}", where)
            return RAISED


def _said(places: list[str]) -> str:
    """Behind a fault: its first place, and the count of others."""
    others = len(dict.fromkeys(places)) - 1
    return f" ({places[0]}{f', and {others} more' if others else ''})" if places[0] else ""
