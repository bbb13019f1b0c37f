"""The teacher as a provider's model: its price, the shape of its requests, and its retirement."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import date
from functools import cache

from r2v.config.models import TeacherConfig
from r2v.llm.providers.prices import PriceFactors, Rate, rate_of
from r2v.llm.providers.registry.accepts import Accepts, accepts_of, with_fields
from r2v.llm.providers.registry.lifecycle import ModelLifecycle, lifecycle_of, require_living, today
from r2v.llm.providers.registry.shape import RequestSettings, shape_of
from r2v.log import logger


@dataclass(frozen=True, kw_only=True)
class EndpointKeys:
    """The names of an endpoint's settings in the configuration, for errors."""

    section: str = "teacher"
    provider: str = "teacher.provider"
    model_name: str = "teacher.model_name"


TEACHER_KEYS = EndpointKeys()
POLICY_KEYS = EndpointKeys(section="policy.api", provider="policy.provider", model_name="policy.model_name")
"""Settings of a small model behind an API."""
_PRICES = {
    "batch": "batch_price",
    "cached": "cached_price",
    "write_5m": "cache_write_price",
    "write_1h": "cache_write_price",
    "surcharge_above": "surcharge_above",
    "surcharge_in": "surcharge_in",
    "surcharge_out": "surcharge_out",
}
"""Field of `PriceFactors` -> key of teacher.model."""


def teacher_rate(teacher: TeacherConfig, day: date | None = None, *, keys: EndpointKeys = TEACHER_KEYS) -> Rate:
    """Return the price of the teacher's model on a day (None: today). Raise UsageError if it is unknown."""
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
    """Return the price with the shape of the configured requests. Log an announced retirement and settings that the
    model overrides, once per process.

    Raise UsageError if the model is retired on this day (naming its successor) or refuses a setting.
    """
    rate, day = teacher_rate(teacher, day, keys=keys), day or today()
    if (warning := _life_warning(teacher, day, keys.model_name)) is not None:
        _warn(f"{keys.model_name}={warning}")
    settings = RequestSettings(
        effort=teacher.effort,
        thinking=teacher.thinking,
        thinking_tokens=teacher.thinking_tokens,
        actions=teacher.actions or "text",
        temperature=teacher.temperature,
        prefix=f"{keys.section}.",
    )
    shape = shape_of(_accepts(teacher), settings, model=teacher.model_name)
    if not shape.temperature:
        _warn(f"{teacher.model_name} takes no temperature with these settings; its replies use its own sampling")
    if teacher.actions == "auto" and shape.actions != "tools":
        form = "as JSON by a schema" if shape.actions == "json" else "as JSON in text"
        _warn(f"{teacher.model_name} is not known to take tool calls; its actions come {form}")
    return replace(rate, shape=shape)


def _accepts(teacher: TeacherConfig) -> Accepts:
    listed = accepts_of(teacher.provider, teacher.model_name, base_url=teacher.base_url)
    own = {item.name for item in fields(Accepts)}  # the other facts are of prices and retirement
    return with_fields(listed, {name: value for name, value in teacher.model.items() if name in own})


def _life_warning(teacher: TeacherConfig, day: date, key: str) -> str | None:
    """Return a warning of the model's announced retirement; None without one."""
    configured = teacher.facts.retires
    if configured is None and teacher.base_url is not None:
        return None  # another endpoint than the provider's retires models on days of its own
    listed = lifecycle_of(teacher.provider, teacher.model_name)
    life = listed if configured is None else ModelLifecycle()
    if configured not in (None, "never"):
        life = ModelLifecycle(retires=date.fromisoformat(str(configured)), successor=listed.successor)
    return require_living(key, teacher.provider, teacher.model_name, day, life)


@cache  # several models of one run share a teacher: each line once
def _warn(line: str) -> None:
    logger.warning("  model settings: note=%s", line)
