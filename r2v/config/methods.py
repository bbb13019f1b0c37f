"""The registries of evaluation methods and of ablations, by name.

methods.toml lists every method. `r2v.evaluation.acting.methods` makes an actor of each and `r2v.router.baselines` holds
the baselines' scores, by the same names (tests/evaluation/acting/test_methods.py). Ablations are overrides of the
configuration; ablations.yaml is the only list of their names, and `r2v.experiments.ablations` runs both sides of each.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Method:
    """One evaluation method: its source of actions, and its requirements."""

    name: str
    """Name in `evaluation.methods` and the tables."""
    description: str
    """Short description."""
    routed: bool = False
    """True if a threshold on a router score decides at each step if the LLM acts."""
    trained_router: bool = False
    """True if its score is a model that the router stage fits and stores as <name>.json."""
    reads_probabilities: bool = False
    """True if its score uses the proposal's token probabilities, which APIs do not return."""
    of_weights: bool = False
    """True if it plays other weights of the small policy, from an earlier point of training."""
    asks_verifier: bool = False
    """True if it reads the verifier's scores, with any `router.features`."""
    asks_llm: bool = True
    """True if the LLM acts in at least some steps, so that the provider's key is needed."""
    pretrained_only: bool = False
    """True if it plays the models untrained, without any earlier stage."""
    by_default: bool = True
    """True if it is part of the default `evaluation.methods`."""
    in_family: bool = False
    """True if it belongs to the preregistered comparisons that Holm's correction covers."""


_ROWS = tomllib.loads(Path(__file__).with_name("methods.toml").read_text())
METHODS: dict[str, Method] = {name: Method(name=name, **row) for name, row in _ROWS.items()}
"""Every method, in the order of the tables."""

ORACLE = "oracle_router"
"""The method with lookahead: it executes branches, as executed gains do."""
OURS, WEAK, STRONG = "r2v", "slm_only", "llm_only"
"""The method under test, and the two ends of every cost-success frontier."""
CLONE = "slm_bc_only"
"""`WEAK` before preference training."""

ROUTERS = tuple(method.name for method in METHODS.values() if method.routed)
"""Methods that decide by a threshold on a score."""
BOUNDS = tuple(method.name for method in METHODS.values() if not method.routed)
"""Reference rows, which are never set in bold type."""
FAMILY = tuple(method.name for method in METHODS.values() if method.in_family)
"""Methods that r2v is tested against in the preregistered family of comparisons."""

ALL_ROWS = "all"
"""Value of `ablations.names` for every row, in table order."""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """One ablation: its overrides, and the methods compared on the ablated and the base side, on the same worlds."""

    name: str
    """Name in `ablations.names` and the table."""
    description: str
    """The change, in a few words."""
    overrides: tuple[str, ...] = ()
    """Overrides of the ablated side."""
    shared: tuple[str, ...] = ()
    """Overrides of both sides."""
    base_method: str = "r2v"
    """The method on the base's side."""
    ablated_method: str = "r2v"
    """The method on the ablated side."""
    condition: str | None = None
    """The condition of both sides; None: noisy, or else the first of `evaluation.conditions`."""


@dataclass(frozen=True, kw_only=True)
class AblationRegistry:
    """All ablations, the default ones, and those of learned parts."""

    rows: dict[str, Ablation]
    """Ablations by name, in the order of ablations.csv."""
    default: list[str]
    """Default of `ablations.names`."""
    learned_parts: dict[str, tuple[str, int]]
    """Learned part -> its ablation, and +1 if that adds the part or -1 if it removes it."""


@cache
def registry() -> AblationRegistry:
    """Return the content of ablations.yaml. It is read on first use: many commands do not need it."""
    from r2v.config.yaml_text import plain, read_file

    content = plain(read_file(Path(__file__).with_name("ablations.yaml")).value)
    return AblationRegistry(
        rows={name: _row(name, **row) for name, row in content["rows"].items()},
        default=content["default"],
        learned_parts={part: (row, sign) for part, (row, sign) in content["learned_parts"].items()},
    )


def _row(name: str, *, overrides: Sequence[str] = (), shared: Sequence[str] = (), **others: Any) -> Ablation:
    return Ablation(name=name, overrides=tuple(overrides), shared=tuple(shared), **others)
