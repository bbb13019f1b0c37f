"""Lifecycle: the day from which a provider refuses a model, and the model that takes its place.

    life = lifecycle_of("openai", "gpt-4-turbo")
    life.retired(date(2026, 11, 23))        # True
    life.successor                          # gpt-6.1-sol

Dates are those that the providers announce. Who asks passes today's date in: it decides what is refused and what is
said, never an identity.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, date, datetime

from r2v.errors import UsageError
from r2v.llm.providers.registry.table import api_name, overlay


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelLifecycle:
    """When a model ends. `retires` None: no day is announced."""

    retires: date | None = None
    """The first day on which requests fail."""
    successor: str | None = None
    """The model that the provider recommends in its place."""

    def retired(self, today: date) -> bool:
        """Whether requests fail on this day."""
        return self.retires is not None and today >= self.retires


def today() -> date:
    """The day at the providers: UTC's."""
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
    """A model's lifecycle, under any of its names."""
    return _lifecycles(provider).get(api_name(provider, model), ModelLifecycle())


def living_successor(provider: str, model: str, day: date) -> str:
    """The model itself, or the first in the chain of its successors that is alive on this day."""
    name = api_name(provider, model)
    while (life := lifecycle_of(provider, name)).retired(day) and life.successor is not None:
        name = life.successor
    return name


def require_living(key: str, provider: str, model: str, day: date, life: ModelLifecycle | None = None) -> str | None:
    """A warning in one line where the model's end is announced, else None. Raises UsageError, naming the successor,
    where it has come. life: what the configuration says in place of the table."""
    life = life or lifecycle_of(provider, model)
    if life.retires is None:
        return None
    name = api_name(provider, model)
    asked = name if name == model else f"{model} ({name})"
    successor = living_successor(provider, life.successor or model, day)
    if life.retired(day):
        instead = f"; its successor is {successor}" if successor != name else ""
        raise UsageError(f"{key}={asked}: {provider} retired it on {life.retires}{instead}")
    days = (life.retires - day).days
    return f"{asked} retires in {days} day{'s' * (days != 1)}, on {life.retires}; its successor is {successor}"
