"""Findings of a contract check: faults and notes, each said once, in the order in which they were met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from r2v.envs.guard import described

RAISED = object()
"""What a call gives that raised."""


@dataclass
class CheckFindings:
    """What a check came to. `num_episodes` were played for it."""

    told: dict[str, str] = field(default_factory=dict)
    """Fault -> where it was met first."""
    notes: list[str] = field(default_factory=list)
    num_episodes: int = 0
    outcomes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Player -> (successes, plays) of the grader's check."""

    @property
    def faults(self) -> list[str]:
        """The faults as sentences, in the order in which they were met."""
        return [f"{text} ({where})" if where else text for text, where in self.told.items()]

    def fault(self, text: str | None, where: str = "") -> bool:
        """Add a fault, where there is one; whether there was. The same one is told once, for its first place."""
        if text is not None:
            self.told.setdefault(text, where)
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
