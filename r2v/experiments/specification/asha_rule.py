"""Rule of early stopping in a specification: `asha: {resource: KEY, levels: [...], eta: 3}`.

Without levels there are three rungs: 1/eta^2, 1/eta and all of the points' value of the resource, integers rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from r2v.config.yaml_text import Document, as_type, plain, read
from r2v.constraints import shown
from r2v.errors import UsageError, nearest
from r2v.experiments.specification.conditions import at


@dataclass(frozen=True, kw_only=True)
class AshaRule:
    """Early stopping by successive halving: key of the resource, its value on each rung, and the share 1/eta promoted
    from each rung. No levels: those of the default rule (`levels_of`)."""

    resource: str
    levels: tuple[Any, ...]
    eta: int = 3


def asha_rule(tree: Document) -> AshaRule | None:
    """Return the rule of a specification, or None. Raise UsageError with the line of a mistake."""
    if "asha" not in tree.value:
        return None
    rule = tree.value["asha"]
    if not isinstance(rule, dict):
        tree.refuse(f"must be keys with values, got {shown(str(rule))}", "asha")
    for key in rule:
        if key not in ("resource", "levels", "eta"):
            tree.refuse(f"unknown key; {nearest(key, ('resource', 'levels', 'eta'))}", "asha", key)
    if not isinstance(rule.get("resource"), str):
        tree.refuse("names no resource: the key whose value makes a run longer, such as router.num_tasks", "asha")
    levels, eta = plain(rule.get("levels", [])), as_type(rule.get("eta", 3), int)
    if not isinstance(levels, list) or ("levels" in rule and len(levels) < 2) or levels != sorted(set(levels)):
        tree.refuse("must be at least two values, each above the one before, such as [10, 30, 90]", "asha", "levels")
    if type(eta) is not int or eta < 2:
        tree.refuse(f"must be a whole number of at least 2, got {shown(str(eta))}", "asha", "eta")
    if "metric" not in tree.value:
        tree.refuse("needs a metric to stop by; name it at the top, such as `metric: accuracy`", "asha")
    return AshaRule(resource=rule["resource"], levels=tuple(levels), eta=eta)


def levels_of(rule: AshaRule, texts: Iterable[str]) -> tuple[Any, ...]:
    """Return the value of the resource on each rung for points of these configurations. Raise UsageError if the rule
    has no levels and the points no common number to derive three from."""
    if rule.levels:
        return rule.levels
    values = [at(plain(read(text, "a point").value), rule.resource) for text in texts]
    whole = values[0]
    if any(value != whole for value in values) or isinstance(whole, bool) or not isinstance(whole, (int, float)):
        raise UsageError(
            f"asha: {rule.resource} is not one number in all points, so no levels follow from it; name them: "
            "levels: [1, 3, 9]"
        )
    parts = [whole if rung == 0 else _part(whole, rule.eta**rung) for rung in (2, 1, 0)]
    if len(set(parts)) < len(parts) or whole <= 0:
        raise UsageError(
            f"asha: {rule.resource}={whole} makes no three levels {parts}; name them: levels: [1, {whole}]"
        )
    return tuple(parts)


def _part(whole: float, divisor: int) -> float:
    return -(-whole // divisor) if isinstance(whole, int) else round(whole / divisor, 6)
