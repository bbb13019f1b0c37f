"""The rule of early stopping in a specification: `asha: {resource: KEY, levels: [...], eta: 3}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from r2v.constraints import shown
from r2v.errors import nearest
from r2v.experiments.located_yaml import LocatedTree


@dataclass(frozen=True, kw_only=True)
class AshaRule:
    """Early stopping by successive halving: the key that costs, its values rung by rung, and the share 1/eta that goes
    on from each rung."""

    resource: str
    levels: tuple[Any, ...]
    eta: int = 3


def asha_rule(tree: LocatedTree) -> AshaRule | None:
    """The rule of a specification; None where it has none. Raises UsageError naming the line."""
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
    levels, eta = rule.get("levels"), rule.get("eta", 3)
    if not isinstance(levels, list) or len(levels) < 2 or levels != sorted(set(levels)):
        tree.refuse("must be at least two values, each above the one before, such as [10, 30, 90]", "asha", "levels")
    if type(eta) is not int or eta < 2:
        tree.refuse(f"must be a whole number of at least 2, got {shown(str(eta))}", "asha", "eta")
    if "metric" not in tree.value:
        tree.refuse("needs a metric to stop by; name it at the top, such as `metric: accuracy`", "asha")
    return AshaRule(resource=rule["resource"], levels=tuple(levels), eta=eta)
