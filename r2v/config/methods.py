"""The registries of methods and of ablations: every way that an evaluation can play a task, and every part that a study
can take away, by name.

methods.toml is the only list of method names. `r2v.evaluation.acting.methods` says how each becomes an actor,
`r2v.router.baselines` how the baselines score a step; both are keyed by these names and a test holds them equal. The
rows of ablations are overrides of the configuration and nothing else; they stand in ablations.yaml, the only list of
their names, and `r2v.experiments.ablations` makes both sides of each.
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
    """One method: who chooses the actions, and what has to be there before it can play."""

    name: str
    """As `evaluation.methods` and the tables spell it."""
    description: str
    """What it does, in a few words."""
    routed: bool = False
    """Decides step by step, by a threshold on a router score, whether the LLM acts."""
    trained_router: bool = False
    """Its score is a model that the router stage fits and stores as <name>.json."""
    reads_probabilities: bool = False
    """Its score is made of the proposal's token probabilities, which no API gives."""
    of_weights: bool = False
    """Plays other weights of the small policy, as training left them."""
    asks_verifier: bool = False
    """Reads the verifier's scores, whatever `router.features` says."""
    asks_llm: bool = True
    """The LLM acts in at least some steps, so the provider's key is needed."""
    pretrained_only: bool = False
    """Plays models as they came: no earlier stage has to have trained anything."""
    by_default: bool = True
    """Part of `evaluation.methods` where the configuration names none."""
    in_family: bool = False
    """Belongs to the comparisons named in advance, over which Holm's correction of p-values runs."""


_ROWS = tomllib.loads(Path(__file__).with_name("methods.toml").read_text())
METHODS: dict[str, Method] = {name: Method(name=name, **row) for name, row in _ROWS.items()}
"""Every method, in the order of the tables."""

ORACLE = "oracle_router"
"""The method that looks ahead: it executes branches, as executed gains do."""
OURS, WEAK, STRONG = "r2v", "slm_only", "llm_only"
"""The method that the others are compared with, and the two ends of every cost-success frontier."""
CLONE = "slm_bc_only"
"""`WEAK` before preference training."""

ROUTERS = tuple(method.name for method in METHODS.values() if method.routed)
"""Methods that decide by a threshold on a score."""
BOUNDS = tuple(method.name for method in METHODS.values() if not method.routed)
"""Reference rows: routers are compared with them, and they do not compete for bold type."""
FAMILY = tuple(method.name for method in METHODS.values() if method.in_family)
"""Methods that r2v is tested against in the family of comparisons named in advance."""

ALL_ROWS = "all"
"""In `ablations.names`: every row, in the order of the table."""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """One row: what is changed, and which method of the changed pipeline is compared with which of the whole. Both play
    the same worlds."""

    name: str
    """As `ablations.names` and the table spell it."""
    description: str
    """The change, in a few words."""
    overrides: tuple[str, ...] = ()
    """Of the ablated side."""
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
    """Every row, and what is said of several."""

    rows: dict[str, Ablation]
    """By name, in the order of ablations.csv."""
    default: list[str]
    """The rows of a study whose configuration names none."""
    learned_parts: dict[str, tuple[str, int]]
    """Learned part -> the row that tells of it, and whether that adds the part (+1) or takes it away (-1)."""


@cache
def registry() -> AblationRegistry:
    """Return what ablations.yaml says. It is read on first use, for commands that need no configuration."""
    from r2v.config.yaml_text import plain, read_file

    content = plain(read_file(Path(__file__).with_name("ablations.yaml")).value)
    return AblationRegistry(
        rows={name: _row(name, **row) for name, row in content["rows"].items()},
        default=content["default"],
        learned_parts={part: (row, sign) for part, (row, sign) in content["learned_parts"].items()},
    )


def _row(name: str, *, overrides: Sequence[str] = (), shared: Sequence[str] = (), **others: Any) -> Ablation:
    return Ablation(name=name, overrides=tuple(overrides), shared=tuple(shared), **others)
