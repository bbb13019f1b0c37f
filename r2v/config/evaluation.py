"""How the policy acts, when the LLM is asked, and what is measured."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from r2v.config.checks import check, positive, probability
from r2v.config.methods import METHODS
from r2v.errors import nearest


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """When to ask the LLM."""

    model: Literal["logistic", "boosting"] = "logistic"
    """What predicts the gain."""
    label: Literal["counterfactual", "disagreement", "episode"] = "counterfactual"
    """What it predicts: the executed gain of an LLM step, a differing action, or the episode's failure."""
    features: list[str] = field(default_factory=lambda: ["uncertainty", "verifier", "progress", "page", "tool"])
    """Feature groups."""
    num_tasks: int = 150
    """Training tasks rolled out and branched for features."""
    seeds: list[int] = field(default_factory=lambda: [11])
    """Roll-out seeds of the features."""
    budget: float = 0.2
    """Share of steps that may go to the LLM, realised on calibration tasks."""
    num_calibration_tasks: int = 100
    """Calibration tasks on which thresholds are found by executing the routed policy."""
    l2: float = 1.0
    """Inverse strength of the logistic penalty (scikit-learn's C)."""

    def __post_init__(self) -> None:
        groups = ("uncertainty", "samples", "verifier", "progress", "page", "tool")
        for name in self.features:
            check(name in groups, "router.features", nearest(name, groups), name)
        probability("router.budget", self.budget)


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """How the policy acts when it is judged."""

    num_candidates: int = 4
    """K: samples per step of best_of_k, and of the router's feature group `samples`. slm_only is greedy."""
    temperature: float = 0.7
    """Temperature of these samples."""
    top_p: float = 0.95
    """Nucleus of these samples."""
    max_llm_calls: int = 30
    """LLM calls an episode may spend, whatever the router says (llm_only is exempt)."""
    max_steps: int = 16
    """Steps after which an episode is cut off as failed."""
    max_new_tokens: int = 24
    """Longest action of the small policy."""

    def __post_init__(self) -> None:
        for name in ("num_candidates", "max_steps", "max_new_tokens"):
            positive(f"inference.{name}", getattr(self, name))
        check(0 < self.top_p <= 1, "inference.top_p", "must be in (0, 1]", self.top_p)
        check(self.temperature >= 0, "inference.temperature", "must be at least 0", self.temperature)
        check(self.max_llm_calls >= 0, "inference.max_llm_calls", "must be at least 0", self.max_llm_calls)

    def acting(self, samples: bool = False) -> InferenceConfig:
        """What a greedy roll-out depends on; what concerns samples is evened out unless they are drawn."""
        return self if samples else dataclasses.replace(self, num_candidates=1, temperature=0.0, top_p=1.0)


CONDITIONS = ("clean", "noisy", "shift", "heldout")
"""Everything `evaluate` can play them under."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Which methods are compared, on what, and with what statistics."""

    methods: list[str] = field(default_factory=lambda: [m.name for m in METHODS.values() if m.by_default])
    """Rows of the main table."""
    conditions: list[str] = field(default_factory=lambda: ["clean", "noisy", "shift"])
    """clean, noisy (what training saw), shift (held-out categories too), heldout (noisy, on templates that no
    training saw)."""
    seeds: list[int] = field(default_factory=lambda: [1, 2])
    """Every task is played once per seed."""
    num_tasks: int | None = None
    """Evaluation tasks; None: all."""
    budgets: list[float] = field(default_factory=lambda: [0.05, 0.1, 0.2, 0.4])
    """Operating points of frontier.csv: shares of LLM steps, realised on calibration tasks."""
    bootstrap: int = 10_000
    """Resamples of the task-clustered intervals."""
    cvar_alpha: float = 0.2
    """Tail share of cvar_failure."""

    def __post_init__(self) -> None:
        for name in self.methods:
            check(name in METHODS, "evaluation.methods", nearest(name, METHODS), name)
        for name in self.conditions:
            check(name in CONDITIONS, "evaluation.conditions", f"allowed: {', '.join(CONDITIONS)}", name)
        check(
            len(set(self.seeds)) == len(self.seeds) > 0,
            "evaluation.seeds",
            "must be distinct and not empty",
            self.seeds,
        )
        for budget in self.budgets:
            check(0 < budget < 1, "evaluation.budgets", "must lie between 0 and 1", budget)
        positive("evaluation.bootstrap", self.bootstrap)
        check(0 < self.cvar_alpha <= 1, "evaluation.cvar_alpha", "must be in (0, 1]", self.cvar_alpha)
        check(self.num_tasks is None or self.num_tasks > 0, "evaluation.num_tasks", "must be above 0", self.num_tasks)

    @property
    def asks_teacher(self) -> bool:
        """Whether an LLM acts by any of the methods."""
        return any(METHODS[name].asks_llm for name in self.methods)

    @property
    def of_trained(self) -> bool:
        """Whether any of the methods needs what earlier jobs have trained."""
        return not all(METHODS[name].pretrained_only for name in self.methods)


@dataclass(frozen=True, kw_only=True)
class AblationsConfig:
    """What is taken away, one at a time."""

    names: list[str] = field(
        default_factory=lambda: [
            "no_verifier",
            "no_dpo",
            "no_perturbation",
            "best_of_4",
            "feat_uncertainty_only",
            "label_episode",
            "label_disagreement",
        ]
    )
    """Rows of ablations.csv; see r2v.experiments.ablations."""
    seeds: list[int] = field(default_factory=lambda: [1, 2])
    """Evaluation seeds of the ablated runs."""
