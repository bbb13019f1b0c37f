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
"""Everything a router can look at."""
GROUPS_OF_WEIGHTS = ("uncertainty", "verifier")
"""Groups that only weights at hand give: token probabilities, and a verifier trained on the same base."""
NOT_OF_AN_API = tuple(
    method.name
    for method in METHODS.values()
    if method.reads_probabilities or method.of_weights or method.asks_verifier
)
"""Methods that no small model behind an API can play."""
ROUTER_MODELS = ("logistic", "boosting", "constant", "case_support")
"""Router models that are bundled."""
IMPUTED = "imputed"
"""Label of a router of which no outcome was executed, and the word that marks all that is made of it."""


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """The router: when a step goes to the LLM."""

    model: Line = "boosting"
    """Classifier that predicts the gain of an LLM step: boosting, logistic (which can be read), constant (the same at
    every step, which any model becomes where the labels hold one class), case_support (the share of the teacher's
    nearest recorded steps that act otherwise: nothing is fitted but its scale), or package.module:Class of your own."""
    label: Literal["counterfactual", "disagreement", "episode", "imputed"] = "counterfactual"
    """Label it is fitted on. counterfactual: the executed gain of an LLM step; disagreement: the LLM would act
    differently; episode: the episode fails. imputed, for logs without a world: the policy acts otherwise than its
    teacher did at a recorded state; nothing is executed, so such a router is in no table."""
    canary_price: NotNegative = 1.0
    """With label=counterfactual: what an injected instruction that is carried out costs, in successes."""
    disagreement_weight: Share = 0.25
    """With label=counterfactual: weight of the calibrated log-odds that the LLM would act differently in the router's
    score; those of a gain have the rest. 0: the gain alone."""
    choose_score: bool = True
    """At each operating point use the score that calibration tasks prefer, where they prefer another one to the blend
    by more than .03 and one standard error; with fewer than 60 calibration tasks the blend acts."""
    held_out_tasks: Budget | None = field(default=None, metadata=IF_GIVEN)
    """With label=imputed: share of the recorded tasks that cloning leaves out, so that the policy is asked about states
    that it has not learnt; None: 0.25."""
    features: Names = field(default_factory=lambda: ["uncertainty", "progress", "page", "tool"], metadata=EVERYDAY_KEY)
    """Feature groups: uncertainty, samples, verifier, progress, page, tool, cases (how the teacher's nearest recorded
    steps act). The verifier, paid for what it reads at each step, has not earned its place among them."""
    num_tasks: Count = 150
    """Training tasks that are rolled out and branched to make features."""
    seeds: Seeds = field(default_factory=lambda: [11])
    """Seeds of these rollouts."""
    rounds: CountOrNone = 2
    """Rounds of policy iteration after the rollouts of the small policy alone: the router so far is fitted, plays, and
    each of its steps is labelled by what asking and not asking come to when it plays on; 0: none."""
    round_tasks: Count = 300
    """Training tasks that the router so far plays in each round; they are dealt over round_budgets."""
    round_budgets: Annotated[list[Budget], Distinct()] = field(default_factory=lambda: [0.07, 0.23])
    """Shares of LLM steps that the router so far plays at in a round, as realised on calibration tasks."""
    budget: Share = field(default=0.2, metadata=EVERYDAY_KEY)
    """Share of steps that may go to the LLM, as realised on calibration tasks."""
    budget_over_small: Positive | None = field(default=None, metadata=IF_GIVEN)
    """The budget in dollars, in place of a share of steps: by how much an episode may cost more than the small policy's
    alone, as realised on calibration tasks; 0.5: half as much again. None: router.budget."""
    num_calibration_tasks: Count = 100
    """Calibration tasks on which the threshold is found by executing the routed policy."""
    max_risk: Budget | None = field(default=None, metadata=IF_GIVEN)
    """alpha: the share of tasks that may fail under the threshold that a Learn-then-Test guarantee names; it is written
    beside r2v's own threshold, or said to be infeasible. Plays 10 thresholds, 0 among them. None: no guarantee."""
    risk_delta: Budget = 0.1
    """delta: the probability, over calibration tasks, with which that guarantee may be wrong."""
    l2: Positive = 1.0
    """Inverse strength of the L2 penalty of logistic regression (scikit-learn's C): smaller regularises more."""

    def __post_init__(self) -> None:
        check_fields("router", self)
        require_name("router.model", self.model, ROUTER_MODELS)
        _ = self.model_sha256  # a module that cannot be found is refused here
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
        """Content of the module of a model by dotted path, so that an edited one makes new artifacts; else None."""
        return source_sha256("router.model", self.model) if is_dotted(self.model) else None

    @property
    def imputed(self) -> bool:
        """Whether its labels are imputed and nothing is executed."""
        return self.label == IMPUTED

    @property
    def reads_verifier(self) -> bool:
        """True if the trained routers look at the verifier's scores."""
        return "verifier" in self.features

    @property
    def reads_cases(self) -> bool:
        """True if a router looks at case support, so that its index is a job of the chain."""
        return "cases" in self.features or self.model == "case_support"

    @property
    def routed_rounds(self) -> int:
        """Rounds that are played: none where the label is not of states that a router leads to."""
        learns = self.label in ("counterfactual", "disagreement") and self.model != "constant"
        return self.rounds if learns else 0

    def of_api_model(self) -> RouterConfig:
        """The same without features that no small model behind an API gives. Raises UsageError where none is left."""
        kept = [group for group in self.features if group not in GROUPS_OF_WEIGHTS]
        check(bool(kept), "router.features", "must name a group that an API model gives", self.features)
        return dataclasses.replace(self, features=kept)

    def features_only(self) -> RouterConfig:
        """What router features depend on: fields that only the router's own stage reads are set to constants, and so
        not in their fingerprint."""
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
        """The share of recorded tasks that cloning leaves out for the router; None where it leaves out none."""
        return (self.held_out_tasks or 0.25) if self.imputed else None


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """How the small policy acts in rollouts and evaluation."""

    num_candidates: Annotated[int, Range(at_least=1, at_most=10_000)] = 4
    """K: actions sampled per step by best_of_k, and for the router's feature group `samples`; slm_only is greedy."""
    temperature: Temperature = 0.7
    """Sampling temperature of these actions."""
    top_p: PositiveShare = 0.95
    """Nucleus sampling: probability mass that these actions are drawn from."""
    max_llm_calls: CountOrNone = 30
    """LLM calls that an episode may spend, whatever the router decides (llm_only is exempt)."""
    max_steps: Annotated[int, Range(at_least=1, at_most=100_000)] = field(default=16, metadata=EVERYDAY_KEY)
    """Steps after which an episode is truncated, which counts as a failure."""
    max_new_tokens: Annotated[int, Range(at_least=1, at_most=1_000_000)] = field(default=24, metadata=EVERYDAY_KEY)
    """Longest action of the small policy, in tokens."""

    def __post_init__(self) -> None:
        check_fields("inference", self)

    def acting(self, samples: bool = False) -> InferenceConfig:
        """What a rollout depends on: without samples the sampling fields are set to those of a greedy one, so that they
        are not in its fingerprint."""
        return self if samples else dataclasses.replace(self, num_candidates=1, temperature=0.0, top_p=1.0)


CONDITIONS = ("clean", "noisy", "shift", "heldout")
"""The conditions that `evaluate` can play under."""


def operating_point(budget: float) -> str:
    """What the episodes and rows of one budget are named: 0.05 is b0.05."""
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
    """Tasks of each condition that oracle_router plays, the first ones; None: all; 0: it is left out. It tries
    branches at every step, which cost whole episodes where worlds cannot be copied."""
    frontier_tasks: CountOrNone | None = field(default=None, metadata=IF_GIVEN)
    """Tasks of each condition on which the frontier's operating points are played; None: all; 0: no frontier."""
    gains_tasks: CountOrNone | None = field(default=None, metadata=IF_GIVEN)
    """Tasks of each condition on which what an LLM step gains is executed, for the routers' AUROC and r2v's ECE and
    Brier score, along r2v's episodes where its router learnt by rounds, else along slm_only's; None: all; 0: they are
    left out. It branches as oracle_router does."""
    pilot_tasks: Count = field(default=20, metadata=RUNTIME)
    """Calibration tasks that `r2v pilot` plays by either model; no other command reads it."""
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
        """The methods that are played: all of them but an oracle that is left out."""
        return [name for name in self.methods if name != ORACLE or self.oracle_tasks != 0]

    @property
    def operating_points(self) -> dict[str, float]:
        """Name -> budget of the frontier's operating points."""
        return {} if self.frontier_tasks == 0 else {operating_point(budget): budget for budget in self.budgets}

    @property
    def asks_teacher(self) -> bool:
        """Whether an LLM acts by any of the methods."""
        return any(METHODS[name].asks_llm for name in self.played)

    def of_api_model(self) -> EvaluationConfig:
        """The same without methods that no small model behind an API can play. Raises UsageError where none is left."""
        kept = [name for name in self.methods if name not in NOT_OF_AN_API]
        check(bool(kept), "evaluation.methods", "must name one that an API model can play", self.methods)
        return dataclasses.replace(self, methods=kept)

    def asks_verifier(self, router: RouterConfig) -> bool:
        """True if a method that is played reads the verifier's scores; trained routers do as `router` says."""
        methods = [METHODS[name] for name in self.played]
        return any(method.asks_verifier or (method.routed and router.reads_verifier) for method in methods)

    @property
    def of_trained(self) -> bool:
        """Whether any of the methods needs what earlier jobs have trained."""
        return not all(METHODS[name].pretrained_only for name in self.played)


@dataclass(frozen=True, kw_only=True)
class AblationsConfig:
    """The ablations: what is taken out of the pipeline, one thing at a time."""

    names: Names = field(default_factory=lambda: list(registry().default), metadata=EVERYDAY_KEY)
    """Ablations to run: rows of ablations.csv by name (r2v.config.methods describes them), or all: every row that
    this configuration can tell anything of, in the order of the table."""
    seeds: Seeds = field(default_factory=lambda: [1, 2])
    """Evaluation seeds of the ablations."""
    budgets: Annotated[list[Budget], Distinct(empty=True)] = field(default_factory=list)
    """Operating points of a frontier that both sides of a routed row play, for APGR; none: APGR is left out. The small
    policy and the LLM alone are played for it too."""

    def __post_init__(self) -> None:
        check_fields("ablations", self)
        members("ablations.names", self.names, (*registry().rows, ALL_ROWS))
        check(self.names == [ALL_ROWS] or ALL_ROWS not in self.names, "ablations.names", "holds all alone", self.names)

    @property
    def rows(self) -> list[Ablation]:
        """The rows that are named, in this order."""
        rows = registry().rows
        return list(rows.values()) if self.names == [ALL_ROWS] else [rows[name] for name in self.names]
