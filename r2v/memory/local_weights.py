"""Weights that a process of R2V loads itself: what is refused of a model before anything is trained or paid for."""

from __future__ import annotations

from r2v.config import PolicyConfig
from r2v.config.engines import LOCAL
from r2v.errors import InputError
from r2v.memory.shapes import require_unquantized, values_of


def require_loadable(policy: PolicyConfig) -> None:
    """Raise UsageError for a policy that is loaded here and whose config.json, where it is known, says that its weights
    are quantized. An engine may serve such a model."""
    if policy.engine != LOCAL:
        return
    try:
        values = values_of(policy.model_name)
    except (InputError, RecursionError):  # RecursionError: adapters that name themselves as their base
        return  # it may be downloaded or made yet; `r2v.policy.load` looks again
    require_unquantized(values, f"policy.model_name={policy.model_name}")
