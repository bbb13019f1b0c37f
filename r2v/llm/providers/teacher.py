"""The teacher as a provider's model: its price, what is asked of it, and whether it still lives.

rate = teacher_rate(config.teacher)                # for prices; never refuses a model that has been shut down
rate = asked_rate(config.teacher)                  # for whoever is about to ask it
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import date
from functools import cache

from r2v.config.models import TeacherConfig
from r2v.llm.providers.prices import PriceFactors, Rate, rate_of
from r2v.llm.providers.registry.accepts import Accepts, accepts_of, with_fields
from r2v.llm.providers.registry.lifecycle import ModelLifecycle, lifecycle_of, require_living, today
from r2v.llm.providers.registry.shape import Asked, shape_of
from r2v.log import logger


@dataclass(frozen=True, kw_only=True)
class EndpointKeys:
    """The names of an endpoint's settings in the configuration, for errors."""

    section: str = "teacher"
    provider: str = "teacher.provider"
    model_name: str = "teacher.model_name"


TEACHER_KEYS = EndpointKeys()
POLICY_KEYS = EndpointKeys(section="policy.api", provider="policy.provider", model_name="policy.model_name")
"""Of a small model that is asked through an API."""
_PRICES = {
    "batch": "batch_price",
    "cached": "cached_price",
    "write_5m": "cache_write_price",
    "write_1h": "cache_write_price",
    "surcharge_above": "surcharge_above",
    "surcharge_in": "surcharge_in",
    "surcharge_out": "surcharge_out",
}
"""Factors by the keys of teacher.model that give them."""


def teacher_rate(teacher: TeacherConfig, day: date | None = None, *, keys: EndpointKeys = TEACHER_KEYS) -> Rate:
    """What the teacher's model costs, on a day (None: today). Raises UsageError where that is not known."""
    return rate_of(
        teacher.provider,
        teacher.model_name,
        teacher.usd_in,
        teacher.usd_out,
        base_url=teacher.base_url,
        factors=PriceFactors(**{name: getattr(teacher.facts, key) for name, key in _PRICES.items()}),
        accepts=_accepts(teacher),
        day=day,
        keys=f"{keys.section}.usd_in and {keys.section}.usd_out",
        name=keys.model_name,
    )


def asked_rate(teacher: TeacherConfig, day: date | None = None, *, keys: EndpointKeys = TEACHER_KEYS) -> Rate:
    """The same, with the shape of the requests that the configuration asks for; what the user should know of it is
    logged, once in a process.

    Raises UsageError where the model is retired on this day (naming its successor) or does not take what is asked.
    """
    rate, day = teacher_rate(teacher, day, keys=keys), day or today()
    if (warning := _life_warning(teacher, day, keys.model_name)) is not None:
        _tell(f"{keys.model_name}={warning}")
    asked = Asked(
        effort=teacher.effort,
        thinking=teacher.thinking,
        thinking_tokens=teacher.thinking_tokens,
        actions=teacher.actions or "text",
        temperature=teacher.temperature,
        prefix=f"{keys.section}.",
    )
    shape = shape_of(_accepts(teacher), asked, model=teacher.model_name)
    if not shape.temperature:
        _tell(f"{teacher.model_name} takes no temperature as it is asked: its replies are drawn by its own sampling")
    if teacher.actions == "auto" and shape.actions != "tools":
        how = "as JSON by a schema" if shape.actions == "json" else "as JSON in text"
        _tell(f"{teacher.model_name} is not known to take tool calls: its actions come back {how}")
    return replace(rate, shape=shape)


def _accepts(teacher: TeacherConfig) -> Accepts:
    known = accepts_of(teacher.provider, teacher.model_name, base_url=teacher.base_url)
    return with_fields(known, _of_requests(teacher.model))


def _of_requests(facts: dict[str, object]) -> dict[str, object]:
    """The facts that are fields of `Accepts`."""
    return {name: value for name, value in facts.items() if name in {item.name for item in fields(Accepts)}}


def _life_warning(teacher: TeacherConfig, day: date, key: str) -> str | None:
    """What is to be said of the model's end. Another endpoint than the provider's has ends of its own."""
    told = teacher.facts.retires
    if told is None and teacher.base_url is not None:
        return None
    known = lifecycle_of(teacher.provider, teacher.model_name)
    life = known if told is None else ModelLifecycle()
    if told not in (None, "never"):
        life = ModelLifecycle(retires=date.fromisoformat(str(told)), successor=known.successor)
    return require_living(key, teacher.provider, teacher.model_name, day, life)


@cache
def _tell(line: str) -> None:
    logger.warning("  %s", line)
