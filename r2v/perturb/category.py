"""A perturbation category: a value that says what it touches and a pure function that does it.

A bundled category is one file `r2v/perturb/categories/<name>.py` with a `CATEGORY`, and one field of that name in
`PerturbationsConfig`; the order of those fields is the order of composition. One of your own is one file anywhere,
named by its dotted path under `perturbations.extra` (docs/extending/perturbation.md). Whether a step is hit is not the
category's business (see `schedule`); it only says what a hit does, from nothing but the scene and draws keyed
by it. The same function therefore serves a live world and a stored episode.
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
"""What is touched: the goal; the tool call, which then never reaches the world; the whole page; values that a recorded
action may rest on; or lines of the page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """Where a hit falls. `text` is what it alters, `previous` the page the world showed before the last call
    (None at the start), `goal` the task's true goal, `mode` the one that is asked for, `tools` those that the world
    offers (none where they are not known), `key` what every draw is looked up under."""

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
        """A number in [0, 1) that belongs to this scene and purpose."""
        return uniform(*self.key, purpose)

    def generator(self, purpose: str) -> random.Random:
        """A generator that belongs to this scene and purpose."""
        return generator(*self.key, purpose)

    def choice(self, options: Sequence[str], purpose: str) -> str:
        """One of the options, drawn by key."""
        return options[int(self.uniform(purpose) * len(options))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a hit did: the text that is shown instead, simulated seconds it cost, what to record, and by which other
    names calls are now made."""

    text: str
    seconds: float = 0.0
    canary: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    renaming: Renaming | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Category:
    """One kind of perturbation.

    `alter` returns None where the scene is not eligible; a change that changes nothing is no hit either. `mode` is
    explicit or implicit (does the text say that something is wrong?), transient or permanent; the configuration may
    choose another one of `r2v.config.MODES`. What is permanent hits every page from its first hit on, by the draws of
    the first observation; of kind tool_call, it fails every call of a tool from the first one on that it failed.
    `group` is the coarse type that an episode is filed under. `preserving` says that everything the page showed can
    still be read, so a recorded action stays the right label.
    """

    kind: PerturbationKind
    group: PerturbationType
    alter: Callable[[Scene], Change | None]
    mode: PerturbationMode = "implicit_transient"
    preserving: bool = True


@cache
def category(name: str) -> Category:
    """The category of this name: a field of `PerturbationsConfig`, or a dotted path package.module:NAME, which is also
    what a step that it hit records. Raises UsageError where the path leads to no category."""
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
    """The coarse type of an episode: none, the one group that all its perturbations are of, or composite."""
    groups = {category(one.category).group for one in applied}
    if not groups:
        return "none"
    return groups.pop() if len(groups) == 1 else "composite"


def call_failed(applied: Sequence[AppliedPerturbation]) -> bool:
    """Whether the call that this observation answers never reached the world."""
    return any(category(one.category).kind == "tool_call" for one in applied)
