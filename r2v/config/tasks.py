"""What is played, and under which hazards."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from r2v.config.checks import RUNTIME, check, probability
from r2v.errors import nearest


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The world."""

    benchmark: str = "desk"
    """Which benchmark: chain, desk, or a dotted path package.module:Class."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the benchmark."""


@dataclass(frozen=True, kw_only=True)
class PerturbationSeeds:
    """Seeds of the perturbations' draws; training and evaluation never share one."""

    train: list[int] = field(default_factory=lambda: [101])
    """Used to make training data."""
    eval: list[int] = field(default_factory=lambda: [901, 902, 903, 904, 905])
    """Evaluation seed i plays under the i-th of these (cyclic)."""

    def __post_init__(self) -> None:
        shared = sorted(set(self.train) & set(self.eval))
        check(not shared, "data.perturbation_seeds", "train and eval must be disjoint", f"shared {shared}")
        check(bool(self.train) and bool(self.eval), "data.perturbation_seeds", "must not be empty", "none")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which tasks, which runs, which split."""

    condition: Literal["clean", "noisy"] = "noisy"
    """What the policy is trained on: clean teacher episodes only, or perturbed ones too."""
    num_episodes: int | None = None
    """Tasks a collection plays, per seed, of the training split; None: all."""
    seeds: list[int] = field(default_factory=lambda: [1, 2])
    """Collection seeds: every task is played once per seed."""
    runs: list[str] = field(default_factory=list)
    """Run ids to train on; empty: the run this pipeline collected, else the latest done one."""
    split_seed: int = 0
    """Names the split of tasks into train, calibration and evaluation; never change it for a benchmark."""
    split_by: Literal["task_id", "template_id"] = "task_id"
    """What is kept on one side of the split."""
    perturbation_seeds: PerturbationSeeds = field(default_factory=PerturbationSeeds)

    def __post_init__(self) -> None:
        check(
            self.num_episodes is None or self.num_episodes > 0,
            "data.num_episodes",
            "must be above 0",
            self.num_episodes,
        )
        check(len(set(self.seeds)) == len(self.seeds) > 0, "data.seeds", "must be distinct and not empty", self.seeds)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How a collection run is filed; nothing here changes an episode."""

    id: str | None = field(default=None, metadata=RUNTIME)
    """Continue this run instead of starting one."""
    base: str | None = field(default=None, metadata=RUNTIME)
    """Folder the run is made in; None: data/runs."""
    tags: list[str] = field(default_factory=list, metadata=RUNTIME)
    """Words to find the run by."""
    notes: str = field(default="", metadata=RUNTIME)
    """Free text kept in the manifest."""


@dataclass(frozen=True, kw_only=True)
class CategoryConfig:
    """One kind of perturbation. Each eligible step is hit independently with `prob`."""

    enabled: bool = True
    """false takes the category out, whatever its `prob`."""
    prob: float = 0.0
    """Chance that an eligible step is hit."""
    severity: float = 0.5
    """Strength in [0, 1], e.g. the share of lines that a partial observation loses."""

    def __post_init__(self) -> None:
        probability("perturbations.*.prob", self.prob)
        probability("perturbations.*.severity", self.severity)


def _category(prob: float, severity: float = 0.5) -> Any:
    return field(default_factory=lambda: CategoryConfig(prob=prob, severity=severity))


@dataclass(frozen=True, kw_only=True)
class PerturbationsConfig:
    """What goes wrong, how often. Categories compose in this order; at most one replacing one per step."""

    tool_error: CategoryConfig = _category(0.10)
    """The call answers an error; nothing happened; a retry works (severity: chance of a second error)."""
    tool_timeout: CategoryConfig = _category(0.0)
    """As tool_error, with simulated latency."""
    stale_observation: CategoryConfig = _category(0.10)
    """The previous observation is shown again."""
    partial_observation: CategoryConfig = _category(0.15)
    """Lines are cut off, with a marker."""
    shuffled_dom: CategoryConfig = _category(0.0)
    """Rows change places."""
    distractor: CategoryConfig = _category(0.20)
    """Look-alike rows with other identifiers."""
    prompt_injection: CategoryConfig = _category(0.20)
    """An instruction planted in untrusted text, with a canary that shows whether it was obeyed."""
    goal_typo: CategoryConfig = _category(0.0)
    """Typing errors in the goal, never in quotes or numbers."""
    latency: CategoryConfig = _category(0.0)
    """Simulated seconds; the text is unchanged."""
    held_out: list[str] = field(default_factory=lambda: ["stale_observation"])
    """Categories that no training or calibration sees; the `shift` condition adds them."""
    held_out_families: list[str] = field(default_factory=list)
    """Injection families kept for the `shift` condition."""

    def __post_init__(self) -> None:
        for name in self.held_out:
            check(name in self.categories(), "perturbations.held_out", nearest(name, self.categories()), name)

    @classmethod
    def categories(cls) -> tuple[str, ...]:
        """Names of all categories, in order of composition."""
        return tuple(f.name for f in dataclasses.fields(cls) if not f.name.startswith("held_out"))

    def active(self, condition: str) -> dict[str, CategoryConfig]:
        """The categories in force under clean, noisy (what training may see) or shift (held-out ones too)."""
        if condition == "clean":
            return {}
        named = {name: getattr(self, name) for name in self.categories()}
        return {
            name: c
            for name, c in named.items()
            if c.enabled and c.prob > 0 and (condition == "shift" or name not in self.held_out)
        }


@dataclass(frozen=True, kw_only=True)
class PerturbConfig:
    """How stored episodes become noisy training data."""

    constructions: list[str] = field(default_factory=lambda: ["annotate", "insert", "reroll"])
    """annotate: edit what was seen; insert: add failed calls and retries; reroll: the teacher plays again in
    the perturbed world (costs teacher calls)."""
    include_clean: bool = True
    """Keep the clean episodes beside their perturbed twins."""

    def __post_init__(self) -> None:
        allowed = ("annotate", "insert", "reroll")
        for name in self.constructions:
            check(name in allowed, "perturb.constructions", nearest(name, allowed), name)
