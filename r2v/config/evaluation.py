"""Configuration of routing, inference, evaluation and ablations."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Annotated, Literal

from r2v.config.methods import ALL_ROWS, METHODS, ORACLE, Ablation, registry
from r2v.constraints import (
    EVERYDAY_KEY,
    IF_GIVEN,
    RUNTIME,
    Budget,
    Count,
    CountOrNone,
    Distinct,
    Line,
    Names,
    NotNegative,
    Positive,
    PositiveShare,
    Range,
    Seeds,
    Share,
    Temperature,
    check,
    check_fields,
    members,
)
from r2v.extensions import is_dotted, require_name, source_sha256

FEATURE_GROUPS = ("uncertainty", "samples", "verifier", "progress", "page", "tool", "cases")
"""All feature groups of routers."""
GROUPS_OF_WEIGHTS = ("uncertainty", "verifier")
"""Groups that need local weights: token probabilities, and a verifier trained on the same base."""
NOT_OF_AN_API = tuple(
    method.name
    for method in METHODS.values()
    if method.reads_probabilities or method.of_weights or method.asks_verifier
)
"""Methods that a small model behind an API cannot play."""
ROUTER_MODELS = ("logistic", "boosting", "constant", "case_support")
"""Bundled router models."""
IMPUTED = "imputed"
"""Label of a router without executed outcomes, and the mark of everything derived from it."""


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """The router, which decides at each step if the LLM acts."""

    model: Line = "boosting"
    """Classifier that predicts the gain of an LLM step: boosting, logistic (which can be read), constant (the same at
    every step, which any model becomes where the labels hold one class), case_support (the share of the teacher's
    nearest recorded steps that act otherwise: nothing is fitted but its scale), or package.module:Class of your own."""
    label: Literal["counterfactual", "disagreement", "episode", "imputed"] = "counterfactual"
    """Label it is fitted on. counterfactual: the executed gain of an LLM step; disagreement: the LLM would act
    differently; episode: the episode fails. imputed, for logs without a world: the policy's action differs from the
    teacher's at a recorded state; nothing is executed, so such a router is in no table."""
    canary_price: NotNegative = 1.0
    """With label=counterfactual: cost of obeying an injected instruction, in successes."""
    disagreement_weight: Share = 0.25
    """With label=counterfactual: weight of the calibrated log-odds that the LLM would act differently in the router's
    score; those of a gain have the rest. 0: the gain alone."""
    choose_score: bool = True
    """At each operating point use another score than the blend if it is better on calibration tasks by more than .03
    and one standard error; with fewer than 60 calibration tasks always the blend."""
    held_out_tasks: Budget | None = field(default=None, metadata=IF_GIVEN)
    """With label=imputed: share of the recorded tasks held out of cloning, so that the policy acts at states that it
    was not trained on; None: 0.25."""
    features: Names = field(default_factory=lambda: ["uncertainty", "progress", "page", "tool"], metadata=EVERYDAY_KEY)
    """Feature groups: uncertainty, samples, verifier, progress, page, tool, cases (the actions of the teacher's nearest
    recorded steps). The verifier is no default: its cost per step exceeds its benefit."""
    num_tasks: Count = 150
    """Training tasks rolled out and branched to make features."""
    seeds: Seeds = field(default_factory=lambda: [11])
    """Seeds of these rollouts."""
    rounds: CountOrNone = 2
    """Rounds of policy iteration after the rollouts of the small policy alone: the current router is fitted and played,
    and each of its steps labelled by the executed outcomes with and without the LLM; 0: none."""
    round_tasks: Count = 300
    """Training tasks that the current router plays in each round, divided over round_budgets."""
    round_budgets: Annotated[list[Budget], Distinct()] = field(default_factory=lambda: [0.07, 0.23])
    """Shares of LLM steps of the current router in a round, as realised on calibration tasks."""
    budget: Share = field(default=0.2, metadata=EVERYDAY_KEY)
    """Share of steps that may go to the LLM, as realised on calibration tasks."""
    budget_over_small: Positive | None = field(default=None, metadata=IF_GIVEN)
    """Budget in dollars in place of a share of steps: relative extra cost of an episode over the small policy's alone,
    as realised on calibration tasks; 0.5: half as much again. None: router.budget."""
    num_calibration_tasks: Count = 100
    """Calibration tasks on which the threshold is found by executing the routed policy."""
    max_risk: Budget | None = field(default=None, metadata=IF_GIVEN)
    """alpha: the share of failing tasks that a Learn-then-Test guarantee bounds; its threshold is recorded with r2v's
    own, or reported as infeasible. Plays 10 thresholds, 0 among them. None: no guarantee."""
    risk_delta: Budget = 0.1
    """delta: the probability, over calibration tasks, that the guarantee is wrong."""
    l2: Positive = 1.0
    """Inverse strength of the L2 penalty of logistic regression (scikit-learn's C): smaller regularises more."""

    def __post_init__(self) -> None:
        check_fields("router", self)
        require_name("router.model", self.model, ROUTER_MODELS)
        _ = self.model_sha256  # raises for a missing module
        members("router.features", self.features, FEATURE_GROUPS)
        check(
            self.budget_over_small is None or not self.imputed,
            "router.budget_over_small",
            f"needs executed labels, not router.label={IMPUTED}",
            self.budget_over_small,
        )
        check(
            self.held_out_tasks is None or self.imputed,
            "router.held_out_tasks",
            f"belongs to router.label={IMPUTED}",
            self.held_out_tasks,
        )

    @functools.cached_property
    def model_sha256(self) -> str | None:
        """Hash of the module of a custom model, so that an edit makes new artifacts; None for a bundled one."""
        return source_sha256("router.model", self.model) if is_dotted(self.model) else None

    @property
    def imputed(self) -> bool:
        """True if its labels are imputed, without any execution."""
        return self.label == IMPUTED

    @property
    def reads_verifier(self) -> bool:
        """True if the trained routers read the verifier's scores."""
        return "verifier" in self.features

    @property
    def reads_cases(self) -> bool:
        """True if a router reads case support, so that its index is a job of the chain."""
        return "cases" in self.features or self.model == "case_support"

    @property
    def routed_rounds(self) -> int:
        """Number of rounds to play: 0 if the label does not depend on the states that a router visits."""
        learns = self.label in ("counterfactual", "disagreement") and self.model != "constant"
        return self.rounds if learns else 0

    def of_api_model(self) -> RouterConfig:
        """Return the section without features that need local weights. Raises UsageError if none is left."""
        available = [group for group in self.features if group not in GROUPS_OF_WEIGHTS]
        check(bool(available), "router.features", "must name a group that an API model gives", self.features)
        return dataclasses.replace(self, features=available)

    def features_only(self) -> RouterConfig:
        """Return the fields that router features depend on; those that only the router's stage reads are set to
        constants, to keep them out of the features' fingerprint."""
        l2 = self.l2 if self.model == "logistic" and self.routed_rounds else 1.0
        if self.routed_rounds:
            return dataclasses.replace(
                self, budget=0.5, budget_over_small=None, l2=l2, max_risk=None, risk_delta=0.1, choose_score=True
            )
        return RouterConfig(
            model="logistic",
            label="imputed" if self.imputed else "counterfactual",
            features=[group for group in self.features if group in ("samples", "verifier")] or ["uncertainty"],
            num_tasks=self.num_tasks,
            seeds=self.seeds,
            rounds=0,
            budget=0.5,
            num_calibration_tasks=self.num_calibration_tasks,
        )

    @property
    def left_out_of_cloning(self) -> float | None:
        """Share of recorded tasks held out of cloning for the router; None for none."""
        return (self.held_out_tasks or 0.25) if self.imputed else None


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """Sampling and limits of the small policy in rollouts and evaluation."""

    num_candidates: Annotated[int, Range(at_least=1, at_most=10_000)] = 4
    """K: actions sampled per step by best_of_k, and for the router's feature group `samples`; slm_only is greedy."""
    temperature: Temperature = 0.7
    """Sampling temperature of these actions."""
    top_p: PositiveShare = 0.95
    """Nucleus sampling: probability mass of these actions."""
    max_llm_calls: CountOrNone = 30
    """Maximum LLM calls of a routed episode (llm_only is exempt)."""
    max_steps: Annotated[int, Range(at_least=1, at_most=100_000)] = field(default=16, metadata=EVERYDAY_KEY)
    """Steps after which an episode is truncated, which counts as a failure."""
    max_new_tokens: Annotated[int, Range(at_least=1, at_most=1_000_000)] = field(default=24, metadata=EVERYDAY_KEY)
    """Longest action of the small policy, in tokens."""

    def __post_init__(self) -> None:
        check_fields("inference", self)

    def acting(self, samples: bool = False) -> InferenceConfig:
        """Return the fields that a rollout depends on: without `samples`, the sampling fields are greedy constants, to
        keep them out of its fingerprint."""
        return self if samples else dataclasses.replace(self, num_candidates=1, temperature=0.0, top_p=1.0)


CONDITIONS = ("clean", "noisy", "shift", "heldout")
"""The conditions of `evaluate`."""


def operating_point(budget: float) -> str:
    """Return the name of a budget's episodes and rows: 0.05 is b0.05."""
    return f"b{budget:.2f}"


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The comparison: methods, tasks and statistics."""

    methods: Names = field(
        default_factory=lambda: [m.name for m in METHODS.values() if m.by_default], metadata=EVERYDAY_KEY
    )
    """Methods to compare: the rows of the main table (r2v.config.methods describes them)."""
    conditions: Names = field(default_factory=lambda: ["clean", "noisy", "shift"], metadata=EVERYDAY_KEY)
    """Conditions to play under: clean; noisy, as in training; shift, with held-out perturbations too; heldout, noisy on
    task templates held out of training."""
    seeds: Seeds = field(default_factory=lambda: [1, 2], metadata=EVERYDAY_KEY)
    """Seeds; every task is played once per seed."""
    num_tasks: Count | None = field(default=None, metadata=EVERYDAY_KEY)
    """Number of evaluation tasks; None: all."""
    budgets: Annotated[list[Budget], Distinct(empty=True)] = field(
        default_factory=lambda: [0.05, 0.1, 0.2, 0.4], metadata=EVERYDAY_KEY
    )
    """Operating points of frontier.csv: shares of LLM steps, as realised on calibration tasks; none: no frontier."""
    oracle_tasks: CountOrNone | None = field(default=None, metadata=IF_GIVEN)
    """First tasks of each condition that oracle_router plays; None: all; 0: it is dropped. It executes branches at each
    step, which cost whole episodes if worlds cannot be copied."""
    frontier_tasks: CountOrNone | None = field(default=None, metadata=IF_GIVEN)
    """Tasks of each condition on which the frontier's operating points are played; None: all; 0: no frontier."""
    gains_tasks: CountOrNone | None = field(default=None, metadata=IF_GIVEN)
    """Tasks of each condition on which the gain of LLM steps is executed, for the routers' AUROC and r2v's ECE and
    Brier score, along r2v's episodes if its router was trained in rounds, else along slm_only's; None: all; 0: they are
    left out. It branches as oracle_router does."""
    pilot_tasks: Count = field(default=20, metadata=RUNTIME)
    """Calibration tasks that `r2v pilot` plays with each model; no other command reads it."""
    bootstrap: Annotated[int, Range(at_least=1, at_most=1_000_000)] = 10_000
    """Bootstrap resamples of the task-clustered confidence intervals."""

    def __post_init__(self) -> None:
        check_fields("evaluation", self)
        members("evaluation.methods", self.methods, METHODS)
        members("evaluation.conditions", self.conditions, CONDITIONS)
        check(
            bool(self.played),
            "evaluation.oracle_tasks",
            "leaves out the only method of evaluation.methods",
            self.oracle_tasks,
        )
        files = [operating_point(budget) for budget in self.budgets]
        check(
            len(set(files)) == len(files),
            "evaluation.budgets",
            "must differ in their first two decimals, by which files and rows are named",
            self.budgets,
        )

    @property
    def played(self) -> list[str]:
        """The methods to play: all but an oracle without tasks."""
        return [name for name in self.methods if name != ORACLE or self.oracle_tasks != 0]

    @property
    def operating_points(self) -> dict[str, float]:
        """Name -> budget of the frontier's operating points."""
        return {} if self.frontier_tasks == 0 else {operating_point(budget): budget for budget in self.budgets}

    @property
    def asks_teacher(self) -> bool:
        """True if the LLM acts in any of the methods."""
        return any(METHODS[name].asks_llm for name in self.played)

    def of_api_model(self) -> EvaluationConfig:
        """Return the section without methods that a small model behind an API cannot play. Raises UsageError if none is
        left."""
        playable = [name for name in self.methods if name not in NOT_OF_AN_API]
        check(bool(playable), "evaluation.methods", "must name one that an API model can play", self.methods)
        return dataclasses.replace(self, methods=playable)

    def asks_verifier(self, router: RouterConfig) -> bool:
        """True if a played method reads the verifier's scores; trained routers do if `router` does."""
        methods = [METHODS[name] for name in self.played]
        return any(method.asks_verifier or (method.routed and router.reads_verifier) for method in methods)

    @property
    def of_trained(self) -> bool:
        """True if any of the methods needs weights or a router trained by earlier jobs."""
        return not all(METHODS[name].pretrained_only for name in self.played)


@dataclass(frozen=True, kw_only=True)
class AblationsConfig:
    """The ablations: parts removed from the pipeline, one at a time."""

    names: Names = field(default_factory=lambda: list(registry().default), metadata=EVERYDAY_KEY)
    """Ablations to run: rows of ablations.csv by name (r2v.config.methods describes them), or all: every row that
    applies to this configuration, in table order."""
    seeds: Seeds = field(default_factory=lambda: [1, 2])
    """Evaluation seeds of the ablations."""
    budgets: Annotated[list[Budget], Distinct(empty=True)] = field(default_factory=list)
    """Operating points of a frontier that both sides of a routed row play, for APGR, together with the small policy and
    the LLM alone; none: APGR is left out."""

    def __post_init__(self) -> None:
        check_fields("ablations", self)
        members("ablations.names", self.names, (*registry().rows, ALL_ROWS))
        check(self.names == [ALL_ROWS] or ALL_ROWS not in self.names, "ablations.names", "holds all alone", self.names)

    @property
    def rows(self) -> list[Ablation]:
        """The selected rows, in order."""
        rows = registry().rows
        return list(rows.values()) if self.names == [ALL_ROWS] else [rows[name] for name in self.names]
