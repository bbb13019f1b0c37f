"""The perturbation report: twins made, episodes rejected and why, hits by category and step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from r2v.data.episode import Episode


class Rejected(StrEnum):
    """Why an episode has no twin of some construction."""

    UNTOUCHED = "untouched"
    """Nothing hit it."""
    TOO_LONG = "too_long"
    """It would take more steps than an actor has."""
    LOST_SUPPORT = "lost_support"
    """A later action could no longer be known."""
    NOT_IDEMPOTENT = "not_idempotent"
    """A failed call may have changed the world."""
    FAILED = "failed"
    """The teacher did not succeed in the perturbed world."""
    DUPLICATE = "duplicate"
    """Another twin of the same parent reads the same."""


class Report:
    """Running counts; memory is the number of different categories and steps."""

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self._rejected: Counter[tuple[str, str]] = Counter()
        self._hits: Counter[tuple[str, int]] = Counter()

    def add(self, episode: Episode) -> Episode:
        """Count an episode that is handed on."""
        self.made[episode.construction] += 1
        for step in episode.steps:
            self._hits.update((one.category, step.step_idx) for one in step.perturbations)
        return episode

    def reject(self, construction: str, why: Rejected) -> None:
        """Count a twin that was not made."""
        self._rejected[construction, why.value] += 1

    def accepted(self, construction: str, twin: Episode | Rejected) -> Iterator[Episode]:
        """The twin if there is one; otherwise its rejection is counted."""
        if isinstance(twin, Rejected):
            self.reject(construction, twin)
        else:
            yield self.add(twin)

    def as_json(self) -> dict[str, Any]:
        """Plain values in a fixed order."""
        rejected: dict[str, dict[str, int]] = defaultdict(dict)
        for (construction, why), count in sorted(self._rejected.items()):
            rejected[construction][why] = count
        hits: dict[str, dict[str, int]] = defaultdict(dict)
        for (name, step), count in sorted(self._hits.items()):
            hits[name][str(step)] = count
        return {
            "read": dict(sorted(self.read.items())),
            "made": dict(sorted(self.made.items())),
            "rejected": rejected,
            "hits": {name: sum(steps.values()) for name, steps in hits.items()},
            "hits_by_step": hits,
        }
