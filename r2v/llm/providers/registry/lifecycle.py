"""Lifecycle of a model: the day from which its provider refuses it, and its successor.

Dates are those that the providers announce. Callers pass the current day in: it decides refusals and warnings, never an
identity.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, date, datetime

from r2v.errors import UsageError
from r2v.llm.providers.registry.table import api_name, overlay


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelLifecycle:
    """The retirement of a model. `retires` None: no day is announced."""

    retires: date | None = None
    """The first day on which requests fail."""
    successor: str | None = None
    """The replacement that the provider recommends."""

    def retired(self, today: date) -> bool:
        """True if requests fail on this day."""
        return self.retires is not None and today >= self.retires


def today() -> date:
    """Return the current day in UTC, by which providers retire models."""
    return datetime.now(UTC).date()


@functools.cache
def _lifecycles(provider: str) -> dict[str, ModelLifecycle]:
    return {
        model: ModelLifecycle(retires=date.fromisoformat(day), successor=successor)
        for day, successors in overlay()["retirements"].get(provider, {}).items()
        for successor, models in successors.items()
        for model in models
    }


def lifecycle_of(provider: str, model: str) -> ModelLifecycle:
    """Return a model's lifecycle under any of its names."""
    return _lifecycles(provider).get(api_name(provider, model), ModelLifecycle())


def living_successor(provider: str, model: str, day: date) -> str:
    """Return the model itself, or the first of its chain of successors that is not retired on this day."""
    name = api_name(provider, model)
    while (life := lifecycle_of(provider, name)).retired(day) and life.successor is not None:
        name = life.successor
    return name


def require_living(key: str, provider: str, model: str, day: date, life: ModelLifecycle | None = None) -> str | None:
    """Return a one-line warning of an announced retirement, else None. Raise UsageError, naming the successor, for a
    retired model. life: from the configuration, in place of the table."""
    life = life or lifecycle_of(provider, model)
    if life.retires is None:
        return None
    name = api_name(provider, model)
    full_name = name if name == model else f"{model} ({name})"
    successor = living_successor(provider, life.successor or model, day)
    if life.retired(day):
        instead = f"; its successor is {successor}" if successor != name else ""
        raise UsageError(f"{key}={full_name}: {provider} retired it on {life.retires}{instead}")
    days = (life.retires - day).days
    return f"{full_name} retires in {days} day{'s' * (days != 1)}, on {life.retires}; its successor is {successor}"
