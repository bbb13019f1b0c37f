"""Configuration of the environment, the data, and the perturbations."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from r2v.constraints import (
    EVERYDAY_KEY,
    IF_GIVEN,
    RUNTIME,
    Count,
    Distinct,
    Keywords,
    Name,
    PathText,
    Seed,
    Seeds,
    Share,
    Spec,
    Text,
    check,
    check_fields,
    members,
)
from r2v.extensions import require_name, source_sha256

INJECTION_FAMILIES = ("direct", "indirect", "goal_hijack", "exfiltration", "role_confusion", "encoded")
"""Every family of prompt injection."""
WITHOUT_SEVERITY = ("stale_observation", "shuffled_dom", "prompt_injection")
"""Categories whose `alter` reads no severity."""
_NO_SEVERITY = 0.5
"""The default of `severity`."""
PerturbationMode = Literal["explicit_transient", "explicit_permanent", "implicit_transient", "implicit_permanent"]
"""Visibility of a fault to the agent (explicit, implicit), and its duration: to the end of the episode (permanent) or
not (transient); after ToolMaze, arXiv 2606.05806."""
MODES: dict[str, tuple[PerturbationMode, ...]] = {
    "tool_error": ("explicit_transient", "explicit_permanent"),
    "tool_timeout": ("explicit_transient", "explicit_permanent"),
    "partial_observation": ("explicit_transient", "implicit_transient"),
    "schema_drift": ("implicit_permanent", "explicit_permanent"),
}
"""Categories with several modes, the default first. Other categories have one."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The environment."""

    benchmark: Spec = field(default="desk", metadata=EVERYDAY_KEY)
    """Benchmark: babyai, chain, desk, miniwob, swebench, textworld, webarena, or your own by package.module:Class."""
    options: Annotated[dict[str, Any], Keywords()] = field(default_factory=dict, metadata=EVERYDAY_KEY)
    """Keyword arguments of the benchmark's class."""


@dataclass(frozen=True, kw_only=True)
class PerturbationSeeds:
    """Seeds of the perturbations; training and evaluation never share one."""

    train: Seeds = field(default_factory=lambda: [101])
    """Seeds for training data."""
    eval: Seeds = field(default_factory=lambda: [901, 902, 903, 904, 905])
    """Seeds for evaluation: the i-th evaluation seed plays under the i-th of these (cyclic)."""

    def __post_init__(self) -> None:
        shared = sorted(set(self.train) & set(self.eval))
        check(not shared, "data.perturbation_seeds", "train and eval must be disjoint", f"shared {shared}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data: tasks, runs and split."""

    condition: Literal["clean", "noisy"] = field(default="noisy", metadata=EVERYDAY_KEY)
    """Training data: clean, teacher episodes only; noisy, perturbed ones too."""
    num_episodes: Count | None = field(default=None, metadata=EVERYDAY_KEY)
    """Number of training tasks of a collection, per seed; None: all."""
    seeds: Seeds = field(default_factory=lambda: [1, 2], metadata=EVERYDAY_KEY)
    """Collection seeds; every task is played once per seed."""
    runs: Annotated[list[Name], Distinct(empty=True)] = field(default_factory=list, metadata=EVERYDAY_KEY)
    """Ids of the runs to train on; empty: this pipeline's run, else the latest finished one."""
    split_seed: Seed = 0
    """Seed of the split of tasks into train, calibration and evaluation; do not change it within a benchmark."""
    split_by: Literal["task_id", "template_id"] = "task_id"
    """Unit that the split keeps together: a task, or all tasks of a template."""
    perturbation_seeds: PerturbationSeeds = field(default_factory=PerturbationSeeds)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Storage of a collection run; no key here changes an episode."""

    id: Name | None = field(default=None, metadata=RUNTIME)
    """Id of a run to continue; None: a new run, or the unfinished one of this configuration."""
    base: PathText | None = field(default=None, metadata=RUNTIME)
    """Parent folder of the run; None: data/runs."""
    tags: Annotated[list[Name], Distinct(empty=True)] = field(default_factory=list, metadata=RUNTIME)
    """Tags to find the run by."""
    notes: Annotated[str, Text(longest=10_000, empty=True, lines=True)] = field(default="", metadata=RUNTIME)
    """Free text for the run's manifest."""


@dataclass(frozen=True, kw_only=True)
class CategoryConfig:
    """One category of perturbation. Each eligible step is perturbed independently with probability `prob`."""

    prob: Share = 0.0
    """Probability that an eligible step is perturbed; 0 leaves the category out."""
    severity: Share = 0.5
    """Strength in [0, 1], such as the share of lines that a partial observation loses. stale_observation, shuffled_dom
    and prompt_injection have none: there it cannot be changed."""


def _category(prob: float, severity: float = 0.5) -> Any:
    return field(default_factory=lambda: CategoryConfig(prob=prob, severity=severity))


def _if_used() -> Any:
    """Return the field of a category added later: it enters fingerprints only if used, so that earlier ones hold."""
    return field(default_factory=CategoryConfig, metadata=IF_GIVEN)


@dataclass(frozen=True, kw_only=True)
class PerturbationsConfig:
    """The perturbations and their probabilities. Categories compose in this order, after the one that replaces the
    observation or the call: a step gets at most one of those."""

    tool_error: CategoryConfig = _category(0.10)
    """The tool call returns an error and does nothing; a retry works (severity: probability of a second error), or
    in mode explicit_permanent never does."""
    tool_timeout: CategoryConfig = _category(0.0)
    """As tool_error, after a simulated timeout."""
    stale_observation: CategoryConfig = _category(0.10)
    """The previous observation is shown again."""
    partial_observation: CategoryConfig = _category(0.15)
    """The last lines are cut off, with a marker (severity: share of lines lost), or in mode implicit_transient any
    lines are missing."""
    shuffled_dom: CategoryConfig = _category(0.0)
    """The rows of a page change places."""
    renumbered_dom: CategoryConfig = _if_used()
    """The elements of a page swap identifiers, and calls refer to the swapped ones (severity: share of them)."""
    distractor: CategoryConfig = _category(0.20)
    """Look-alike rows with other identifiers are added (severity: from one to four of them)."""
    prompt_injection: CategoryConfig = _category(0.20)
    """An instruction is planted in untrusted text, with a canary that shows whether it was obeyed."""
    schema_drift: CategoryConfig = _if_used()
    """Fields of pages and arguments of calls are renamed, from the first hit on (severity: share of names)."""
    value_corruption: CategoryConfig = _if_used()
    """Numbers, dates and units on a page are plausibly wrong, without a marker (severity: share of them)."""
    goal_typo: CategoryConfig = _category(0.0)
    """Typing errors in the goal, never in quotes or numbers (severity: share of words)."""
    latency: CategoryConfig = _category(0.0)
    """Simulated seconds are added; the text is unchanged (severity: up to twenty seconds at 1)."""
    extra: dict[str, CategoryConfig] = field(default_factory=dict, metadata=IF_GIVEN)
    """Custom categories by dotted path package.module:NAME, e.g. {"mypackage.fog:CATEGORY": {prob: 0.2}}; they compose
    after the bundled ones, in this order (docs/extending/perturbation.md)."""
    modes: Annotated[dict[str, Any], Keywords()] = field(default_factory=dict, metadata=IF_GIVEN)
    """Category -> a mode other than its default. tool_error and tool_timeout: explicit_permanent (a tool that failed
    once fails to the end); partial_observation: implicit_transient (each line is lost with probability `severity`,
    without a marker); schema_drift: explicit_permanent (pages announce it)."""
    held_out: Annotated[list[Spec], Distinct(empty=True)] = field(default_factory=lambda: ["stale_observation"])
    """Categories held out of training and calibration; the `shift` condition adds them."""
    held_out_families: Annotated[list[Name], Distinct(empty=True)] = field(default_factory=list)
    """Families of prompt injection held out of training: direct, indirect, goal_hijack, exfiltration, role_confusion,
    encoded."""

    def __post_init__(self) -> None:
        for path in self.extra:
            require_name("perturbations.extra", path, ())
        _ = self.extra_sha256  # raises for a missing module
        members("perturbations.modes", self.modes, MODES)
        check_fields("perturbations", self)
        members("perturbations.held_out", self.held_out, (*self.categories(), *self.extra))
        members("perturbations.held_out_families", self.held_out_families, INJECTION_FAMILIES)
        for name in WITHOUT_SEVERITY:
            # Its default stays a part of fingerprints, so that those of earlier artifacts hold.
            key, severity = f"perturbations.{name}.severity", getattr(self, name).severity
            rule = f"changes nothing: {name} has no severity; leave it out and set perturbations.{name}.prob"
            check(severity == _NO_SEVERITY, key, rule, severity)
        for name, mode in self.modes.items():
            self._require_mode(name, mode)

    @functools.cached_property
    def extra_sha256(self) -> dict[str, str]:
        """Hash of the module of each custom category, so that an edit makes new artifacts."""
        return {path: source_sha256("perturbations.extra", path) for path in self.extra}

    def _require_mode(self, name: str, mode: PerturbationMode) -> None:
        """Raise UsageError for a mode that the category lacks, or a severity that the mode ignores."""
        allowed, severity = MODES[name], getattr(self, name).severity
        check(mode in allowed, f"perturbations.modes.{name}", f"must be one of {', '.join(allowed)}", mode)
        fails_to_the_end = name in ("tool_error", "tool_timeout") and mode == "explicit_permanent"
        rule = f"changes nothing with perturbations.modes.{name}={mode}: failures last to the end; leave it out"
        fits = not fails_to_the_end or severity == _NO_SEVERITY
        check(fits, f"perturbations.{name}.severity", rule, severity)

    @classmethod
    def categories(cls) -> tuple[str, ...]:
        """Return the names of the bundled categories, in the order of composition."""
        later = ("extra", "modes", "held_out", "held_out_families")
        return tuple(f.name for f in dataclasses.fields(cls) if f.name not in later)

    def active(self, condition: str) -> dict[str, CategoryConfig]:
        """Return the active categories under clean, noisy (without held-out ones) or shift (with them)."""
        if condition == "clean":
            return {}
        named = {**{name: getattr(self, name) for name in self.categories()}, **self.extra}
        return {
            name: c for name, c in named.items() if c.prob > 0 and (condition == "shift" or name not in self.held_out)
        }


@dataclass(frozen=True, kw_only=True)
class PerturbConfig:
    """Construction of noisy training data from stored episodes."""

    constructions: Annotated[list[Name], Distinct(empty=True)] = field(
        default_factory=lambda: ["annotate", "insert", "reroll"]
    )
    """annotate: edit the recorded observations; insert: add failed calls and their retries; reroll: the teacher plays
    again in the perturbed environment (costs teacher calls). replace, for the ablation offline_replacement alone: edit
    and replace the observations and keep actions based on removed text, which teaches invention."""
    include_clean: bool = True
    """Keep the clean episodes in addition to the perturbed ones."""

    def __post_init__(self) -> None:
        check_fields("perturb", self)
        members("perturb.constructions", self.constructions, ("annotate", "insert", "reroll", "replace"))
        made, rule = self.constructions, "must not be empty with perturb.include_clean=false: no episode would be left"
        check(self.include_clean or bool(made), "perturb.constructions", rule, made)
