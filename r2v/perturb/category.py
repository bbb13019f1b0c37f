"""Perturbation category: a record of its target and a pure function that alters it.

A bundled category is one file `r2v/perturb/categories/<name>.py` with a `CATEGORY` and one field of that name in
`PerturbationsConfig`; the order of the fields is the order of composition. A user's category is a file anywhere, named
by its dotted path under `perturbations.extra` (docs/extending/perturbation.md). The schedule decides which steps are
hit; a category computes a hit's effect from the scene and draws keyed by it. So the same function serves live worlds
and stored episodes.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args

from r2v.config import PerturbationMode
from r2v.data.episode import AppliedPerturbation, PerturbationType
from r2v.envs.base import Surface
from r2v.errors import UsageError
from r2v.extensions import is_dotted, load_attribute
from r2v.perturb.renaming import Renaming
from r2v.randomness import Key, generator, uniform
from r2v.wire.message import ToolSpec

PerturbationKind = Literal["goal", "tool_call", "replace", "value", "edit"]
"""Target of a category: the goal; the tool call, which then never reaches the world; the whole page (replace); values
that recorded actions may depend on; or lines of the page (edit)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """Context of a hit. `text` is the text to alter, `previous` the world's page before the last call (None at the
    start), `goal` the task's true goal, `mode` the configured one, `tools` the world's (empty if unknown), `key` the
    key of all draws."""

    text: str
    previous: str | None
    goal: str
    severity: float
    mode: PerturbationMode
    key: Key
    surface: Surface
    families: tuple[str, ...]
    tools: tuple[ToolSpec, ...] = ()

    def uniform(self, purpose: str) -> float:
        """Return a number in [0, 1) keyed by this scene and purpose."""
        return uniform(*self.key, purpose)

    def generator(self, purpose: str) -> random.Random:
        """Return a generator keyed by this scene and purpose."""
        return generator(*self.key, purpose)

    def choice(self, options: Sequence[str], purpose: str) -> str:
        """Return one of the options, drawn by key."""
        return options[int(self.uniform(purpose) * len(options))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Effect of a hit: the new text, simulated seconds, recorded parameters and canary, and a renaming of later
    calls."""

    text: str
    seconds: float = 0.0
    canary: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    renaming: Renaming | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Category:
    """A kind of perturbation.

    `alter` returns None for an ineligible scene; a change without effect is no hit either. `mode` is explicit (the text
    shows that something is wrong) or implicit, transient or permanent; the configuration may choose another one of
    `r2v.config.MODES`. A permanent category hits every page from its first hit on, with the draws of the first
    observation; one of kind tool_call fails every call of a tool from its first failure on. `group` is the coarse type
    recorded for an episode. `preserving` is True if the whole page stays readable, so that a recorded action remains
    the right label.
    """

    kind: PerturbationKind
    group: PerturbationType
    alter: Callable[[Scene], Change | None]
    mode: PerturbationMode = "implicit_transient"
    preserving: bool = True


@cache
def category(name: str) -> Category:
    """Return the category of this name, a field of `PerturbationsConfig` or a dotted path package.module:NAME; steps
    record the same name. Raises UsageError if the path leads to no category."""
    if not is_dotted(name):
        bundled: Category = importlib.import_module(f"r2v.perturb.categories.{name}").CATEGORY
        return bundled
    extra = load_attribute("perturbations.extra", name, ())
    if not isinstance(extra, Category):
        raise UsageError(f"perturbations.extra={name}: a {type(extra).__name__}, not an r2v.perturb.category.Category")
    if extra.mode not in get_args(PerturbationMode):
        raise UsageError(
            f"perturbations.extra={name}: mode is {extra.mode!r:.40}, allowed: {', '.join(get_args(PerturbationMode))}"
        )
    return extra


def perturbation_type(applied: Sequence[AppliedPerturbation]) -> PerturbationType:
    """Return the coarse type of an episode: none, the common group of its perturbations, or composite."""
    groups = {category(perturbation.category).group for perturbation in applied}
    if not groups:
        return "none"
    return groups.pop() if len(groups) == 1 else "composite"


def call_failed(applied: Sequence[AppliedPerturbation]) -> bool:
    """True if the call that this observation answers never reached the world."""
    return any(category(perturbation.category).kind == "tool_call" for perturbation in applied)
