"""Every knob, one frozen dataclass per YAML section: defaults < file < flags < `--overrides`.

    config = load("configs/mrp.yaml", ["training.lr=1e-3", "policy.lora_r=32"])
    config.training.phase("bc").lr

A field is documented under it and checked in `__post_init__`. `RUNTIME` fields say where and how a thing runs;
they leave every result as it is and so stay out of fingerprints (`identity`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from r2v.errors import UsageError, nearest

S = TypeVar("S")

RUNTIME = {"runtime": True}
"""Field metadata of what does not change results: paths, device, workers, retries."""


def _check(condition: bool, key: str, rule: str, got: object) -> None:
    if not condition:
        raise UsageError(f"{key} {rule}, got {got}")


def _probability(key: str, value: float) -> None:
    _check(0.0 <= value <= 1.0, key, "must be in [0, 1]", value)


def _positive(key: str, value: float) -> None:
    _check(value > 0, key, "must be above 0", value)


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
        _check(not shared, "data.perturbation_seeds", "train and eval must be disjoint", f"shared {shared}")
        _check(bool(self.train) and bool(self.eval), "data.perturbation_seeds", "must not be empty", "none")


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
        _check(self.num_episodes is None or self.num_episodes > 0, "data.num_episodes", "must be above 0",
               self.num_episodes)
        _check(len(set(self.seeds)) == len(self.seeds) > 0, "data.seeds", "must be distinct and not empty",
               self.seeds)


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
class TeacherConfig:
    """The LLM that demonstrates, and that the router may ask."""

    provider: Literal["scripted", "openai", "anthropic"] = "scripted"
    """Who answers; scripted: the benchmark's own expert."""
    model_name: str = "expert"
    """The provider's model name."""
    temperature: float = 0.0
    """Sampling temperature of the teacher."""
    max_tokens: int = 4096
    """Longest reply."""
    usd_in: float | None = None
    """USD per million prompt tokens, in place of the price table's."""
    usd_out: float | None = None
    """USD per million reply tokens, in place of the price table's."""
    reuse: bool = False
    """Identical questions at temperature 0 are asked once, whoever asks."""
    mode: Literal["batch", "concurrent", "auto"] = field(default="auto", metadata=RUNTIME)
    """How a provider is asked: batch API at half the price, direct calls, or whichever a wave is worth."""
    max_usd: float | None = field(default=None, metadata=RUNTIME)
    """Hard cap on what a run may be billed; None: none."""
    batch_size: int | None = field(default=None, metadata=RUNTIME)
    """Requests in one provider batch, at most; None: the provider's limit."""
    max_concurrent: int = field(default=32, metadata=RUNTIME)
    """Direct calls at the same time, at most."""
    queued_tokens: int | None = field(default=None, metadata=RUNTIME)
    """Prompt tokens in unfinished provider batches, at most; None: found out by being refused."""
    flush_seconds: float = field(default=30.0, metadata=RUNTIME)
    """How long a question waits for company in a provider batch."""
    poll_seconds: float = field(default=30.0, metadata=RUNTIME)
    """First look at a provider batch; later ones are up to twenty times as far apart."""
    reconcile_after: float = field(default=600.0, metadata=RUNTIME)
    """Seconds by which a batch that was made is listed: so long a create call without an answer is looked for."""
    attempts: int = field(default=4, metadata=RUNTIME)
    """Tries of a question that fails for a passing reason, within one process."""
    tail: float = field(default=0.05, metadata=RUNTIME)
    """auto: when this share of the conversations is left, they are called directly."""
    hour_usd: float = field(default=1.0, metadata=RUNTIME)
    """auto: what an hour of waiting is worth; a batch that saves less than its wait costs is called instead."""

    def __post_init__(self) -> None:
        _check(self.temperature >= 0, "teacher.temperature", "must be at least 0", self.temperature)
        for name in ("max_tokens", "max_concurrent", "flush_seconds", "poll_seconds", "reconcile_after", "attempts"):
            _positive(f"teacher.{name}", getattr(self, name))
        for name in ("max_usd", "batch_size", "queued_tokens"):
            if getattr(self, name) is not None:
                _positive(f"teacher.{name}", getattr(self, name))
        _probability("teacher.tail", self.tail)
        for name in ("usd_in", "usd_out", "hour_usd"):
            _check((getattr(self, name) or 0) >= 0, f"teacher.{name}", "must be at least 0", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The small model that is distilled."""

    model_name: str = "tiny"
    """tiny: the bundled student; a local directory; or a hub name."""
    lora_r: int = 0
    """LoRA rank; 0 trains all weights."""
    lora_alpha: int | None = None
    """LoRA scale; None: twice the rank."""
    lora_dropout: float = 0.0
    """Dropout on the adapters' input."""
    load_in_4bit: bool | str = False
    """nf4 base weights: true, false, or auto (where the machine can)."""
    max_seq_len: int = 640
    """Longest context plus action, in tokens; older observations are elided first."""
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """Weights while acting; auto: float64 on a CPU for the tiny student, else what the model was saved in."""
    device: str = field(default="auto", metadata=RUNTIME)
    """cpu, cuda, cuda:1; auto: a GPU where there is one."""

    def __post_init__(self) -> None:
        _check(self.lora_r >= 0, "policy.lora_r", "must be at least 0", self.lora_r)
        _probability("policy.lora_dropout", self.lora_dropout)
        _check(self.max_seq_len >= 32, "policy.max_seq_len", "must be at least 32", self.max_seq_len)
        _check(self.load_in_4bit in (True, False, "auto"), "policy.load_in_4bit", "must be true, false or auto",
               self.load_in_4bit)

    @property
    def effective_lora_alpha(self) -> int:
        """The LoRA scale in force."""
        return 2 * self.lora_r if self.lora_alpha is None else self.lora_alpha


PhaseName = Literal["bc", "preference", "verifier"]
PHASES: tuple[PhaseName, ...] = get_args(PhaseName)


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """Knobs of one training phase; None inherits from `training`."""

    num_epochs: float | None = None
    lr: float | None = None
    batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    weight_decay: float | None = None
    warmup_ratio: float | None = None
    grad_clip: float | None = None
    save_steps: int | None = field(default=None, metadata=RUNTIME)
    max_examples: int | None = None
    """Examples to train on at most, drawn by key; None: all."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase's knobs, all resolved."""

    num_epochs: float
    lr: float
    batch_size: int
    gradient_accumulation_steps: int
    weight_decay: float
    warmup_ratio: float
    grad_clip: float
    save_steps: int = field(metadata=RUNTIME)
    max_examples: int | None
    ranks: int | None = field(default=None, metadata=RUNTIME)
    zero: int = field(default=0, metadata=RUNTIME)
    deepspeed: str | None = field(default=None, metadata=RUNTIME)


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Optimisation. The blocks below inherit every field they leave out."""

    num_epochs: float = 6.0
    """Passes over the data."""
    lr: float = 4e-3
    """Peak learning rate (AdamW, linear decay)."""
    batch_size: int = 16
    """Examples per device and micro-batch."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per update."""
    weight_decay: float = 0.01
    """AdamW's decoupled decay."""
    warmup_ratio: float = 0.15
    """Share of the updates in which the rate climbs."""
    grad_clip: float = 1.0
    """Largest gradient norm."""
    save_steps: int = field(default=200, metadata=RUNTIME)
    """Updates between checkpoints."""
    ranks: int | None = field(default=None, metadata=RUNTIME)
    """Processes that train bc and preference together, a GPU each; None: one per visible GPU. The batch of an update
    is shared among them, so their number changes no result beyond rounding."""
    zero: int = field(default=0, metadata=RUNTIME)
    """DeepSpeed ZeRO stage of bc and preference: 2 shards gradients and optimizer over the ranks, 3 the weights too;
    0: every rank holds everything."""
    deepspeed: str | None = field(default=None, metadata=RUNTIME)
    """A DeepSpeed configuration file of one's own in place of what `zero` stands for."""
    bc: PhaseConfig = field(default_factory=PhaseConfig)
    """Behaviour cloning."""
    preference: PhaseConfig = field(
        default_factory=lambda: PhaseConfig(num_epochs=2.0, lr=2e-4, weight_decay=0.0))
    """DPO."""
    verifier: PhaseConfig = field(default_factory=lambda: PhaseConfig(num_epochs=4.0, lr=4e-3))
    """The verifier's head and backbone."""
    router: PhaseConfig = field(default_factory=PhaseConfig)
    """Empty: logistic and boosting routers take no steps, their knobs are `router.l2` and `router.model`."""

    def __post_init__(self) -> None:
        for name in ("num_epochs", "lr", "batch_size", "gradient_accumulation_steps", "save_steps"):
            for block in ("", "bc.", "preference.", "verifier."):
                value = getattr(getattr(self, block[:-1]) if block else self, name)
                _check(value is None or value > 0, f"training.{block}{name}", "must be above 0", value)
        _probability("training.warmup_ratio", self.warmup_ratio)
        _check(self.ranks is None or self.ranks > 0, "training.ranks", "must be above 0", self.ranks)
        _check(self.zero in (0, 2, 3), "training.zero", "must be 0, 2 or 3", self.zero)
        _check(self.deepspeed is None or self.zero == 0, "training.deepspeed", "goes without training.zero", self.zero)
        given = {name: value for name, value in vars(self.router).items() if value is not None}
        _check(not given, "training.router", "has nothing to set: the router is fitted to the end, see router.*", given)

    def phase(self, name: PhaseName) -> Phase:
        """The phase's knobs: its own where given, else `training`'s."""
        block: PhaseConfig = getattr(self, name)
        values: dict[str, Any] = {f.name: getattr(block, f.name, None) for f in dataclasses.fields(Phase)}
        for key, value in values.items():
            if value is None and key != "max_examples":
                values[key] = getattr(self, key)
        return Phase(**values)


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
        _probability("perturbations.*.prob", self.prob)
        _probability("perturbations.*.severity", self.severity)


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
            _check(name in self.categories(), "perturbations.held_out", nearest(name, self.categories()), name)

    @classmethod
    def categories(cls) -> tuple[str, ...]:
        """Names of all categories, in order of composition."""
        return tuple(f.name for f in dataclasses.fields(cls) if not f.name.startswith("held_out"))

    def active(self, condition: str) -> dict[str, CategoryConfig]:
        """The categories in force under clean, noisy (what training may see) or shift (held-out ones too)."""
        if condition == "clean":
            return {}
        named = {name: getattr(self, name) for name in self.categories()}
        return {name: c for name, c in named.items()
                if c.enabled and c.prob > 0 and (condition == "shift" or name not in self.held_out)}


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
            _check(name in allowed, "perturb.constructions", nearest(name, allowed), name)


@dataclass(frozen=True, kw_only=True)
class VerifierConfig:
    """The step-level judge."""

    mode: Literal["trained", "llm_judge"] = "trained"
    """A scalar head on the base of `policy.model_name`, or a prompted LLM (which needs a teacher that is one)."""
    label_sources: list[str] = field(default_factory=lambda: ["auto"])
    """auto, or any of: outcome, corrupted, judge. auto takes the best that the benchmark's capabilities allow."""
    num_tasks: int = 200
    """Training tasks whose steps are labelled by executed corruptions."""
    num_corruptions: int = 4
    """Wrong actions played on per task."""
    discount: float = 0.4
    """Worth of a success per step of detour: 1 would count every mistake that can be mended as right."""


@dataclass(frozen=True, kw_only=True)
class CandidatesConfig:
    """K actions per state and what became of them."""

    num_samples: int = 5
    """K: samples per state from one shared prefix."""
    temperature: float = 0.7
    """Sampling temperature of the candidates."""
    top_p: float = 0.95
    """Nucleus of the candidates."""
    num_tasks: int = 150
    """Training tasks whose states are sampled."""
    with_teacher: bool = True
    """Ask the teacher at every state too and play its action on: what it would do is a candidate to be chosen.
    Costs one teacher call per state."""
    num_folds: int = 2
    """Verifiers that score candidates never saw the candidates' tasks: cross-fitting folds."""
    def __post_init__(self) -> None:
        _check(self.num_samples >= 1, "candidates.num_samples", "must be at least 1", self.num_samples)
        _check(self.temperature >= 0, "candidates.temperature", "must be at least 0", self.temperature)
        _check(self.num_folds >= 2, "candidates.num_folds", "must be at least 2", self.num_folds)


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig:
    """How candidate values become pairs, and DPO's shape."""

    enabled: bool = True
    """false hands the cloned policy on as it is."""
    pair_mode: Literal["outcome", "verifier_margin", "consensus", "teacher_vs_slm"] = "outcome"
    """What makes one action better than another at the same state."""
    min_margin: float = 0.2
    """Smallest verifier gap of a pair."""
    min_value_gap: float = 0.34
    """Smallest gap of executed values of a pair."""
    max_similarity: float = 0.95
    """Pairs more alike than this (edit similarity) are dropped: they push both log-probs down."""
    max_pairs_per_task: int = 6
    """Pairs a task may give."""
    beta: float = 0.1
    """DPO's inverse temperature."""
    sft_weight: float = 0.2
    """Weight of the chosen action's likelihood beside the DPO loss."""

    def __post_init__(self) -> None:
        _positive("preference.beta", self.beta)

    def pairing(self) -> PreferenceConfig:
        """What making the pairs depends on; what concerns DPO alone is evened out."""
        return dataclasses.replace(self, enabled=True, beta=1.0, sft_weight=0.0)


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
            _check(name in groups, "router.features", nearest(name, groups), name)
        _probability("router.budget", self.budget)


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
            _positive(f"inference.{name}", getattr(self, name))
        _check(0 < self.top_p <= 1, "inference.top_p", "must be in (0, 1]", self.top_p)
        _check(self.temperature >= 0, "inference.temperature", "must be at least 0", self.temperature)
        _check(self.max_llm_calls >= 0, "inference.max_llm_calls", "must be at least 0", self.max_llm_calls)


    def acting(self, samples: bool = False) -> InferenceConfig:
        """What a greedy roll-out depends on; what concerns samples is evened out unless they are drawn."""
        return self if samples else dataclasses.replace(self, num_candidates=1, temperature=0.0, top_p=1.0)


METHODS = ("slm_only", "llm_only", "random_router", "entropy_router", "entropy_nonfree_router", "verifier_router",
           "disagreement_router", "oracle_router", "r2v", "slm_bc_only", "slm_base", "best_of_k")
"""Everything `evaluate` can play."""


CONDITIONS = ("clean", "noisy", "shift", "heldout")
"""Everything `evaluate` can play them under."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Which methods are compared, on what, and with what statistics."""

    methods: list[str] = field(default_factory=lambda: [m for m in METHODS if m not in ("slm_base", "best_of_k")])
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
            _check(name in METHODS, "evaluation.methods", nearest(name, METHODS), name)
        for name in self.conditions:
            _check(name in CONDITIONS, "evaluation.conditions", f"allowed: {', '.join(CONDITIONS)}", name)
        _check(len(set(self.seeds)) == len(self.seeds) > 0, "evaluation.seeds", "must be distinct and not empty",
               self.seeds)
        for budget in self.budgets:
            _check(0 < budget < 1, "evaluation.budgets", "must lie between 0 and 1", budget)
        _positive("evaluation.bootstrap", self.bootstrap)
        _check(0 < self.cvar_alpha <= 1, "evaluation.cvar_alpha", "must be in (0, 1]", self.cvar_alpha)
        _check(self.num_tasks is None or self.num_tasks > 0, "evaluation.num_tasks", "must be above 0",
               self.num_tasks)


@dataclass(frozen=True, kw_only=True)
class Price:
    """USD per million tokens, and the modelled speed behind table latencies."""

    input: float
    """USD per million prompt tokens."""
    output: float
    """USD per million reply tokens."""
    seconds_per_call: float
    """Modelled latency of a call before its first token."""
    seconds_per_token: float
    """Modelled latency of each reply token."""


@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """Prices of the two sides where no provider's price table applies."""

    slm: Price = field(default_factory=lambda: Price(input=0.1, output=0.4, seconds_per_call=0.02,
                                                     seconds_per_token=0.001))
    """The small policy, on one's own machine."""
    llm: Price = field(default_factory=lambda: Price(input=3.0, output=12.0, seconds_per_call=0.6,
                                                     seconds_per_token=0.02))
    """The scripted teacher: thirty times the policy."""
    ratio: float = 30.0
    """Normalised cost of an LLM step; a policy step is 1."""


@dataclass(frozen=True, kw_only=True)
class AblationsConfig:
    """What is taken away, one at a time."""

    names: list[str] = field(default_factory=lambda: [
        "no_verifier", "no_dpo", "no_perturbation", "best_of_4", "feat_uncertainty_only", "label_episode",
        "label_disagreement"])
    """Rows of ablations.csv; see r2v.experiments.ablations."""
    seeds: list[int] = field(default_factory=lambda: [1, 2])
    """Evaluation seeds of the ablated runs."""


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How conversations are run side by side; nothing here changes a result."""

    workers: int = field(default=2, metadata=RUNTIME)
    """Threads that step worlds."""
    max_conversations: int = field(default=64, metadata=RUNTIME)
    """Conversations in flight."""
    batch_size: int = field(default=64, metadata=RUNTIME)
    """Largest batch of the local model."""

    def __post_init__(self) -> None:
        for name in ("workers", "max_conversations", "batch_size"):
            _positive(f"rollout.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Where progress goes."""

    wandb: Literal["disabled", "offline", "online"] = field(default="disabled", metadata=RUNTIME)
    """Weights and Biases; offline files land under logs/wandb."""
    project: str = field(default="r2v-agent", metadata=RUNTIME)
    """wandb project."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration. What lies beside an artifact as config.yaml is one of these."""

    prefix: str = field(default="", metadata=RUNTIME)
    """Folder name in place of <benchmark>_<condition>, e.g. mrp: data/mrp, outputs/mrp, results/mrp."""
    seed: int = 0
    """Seed of everything that is trained."""
    env: EnvConfig = field(default_factory=EnvConfig)
    data: DataConfig = field(default_factory=DataConfig)
    run: RunConfig = field(default_factory=RunConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    perturbations: PerturbationsConfig = field(default_factory=PerturbationsConfig)
    perturb: PerturbConfig = field(default_factory=PerturbConfig)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    candidates: CandidatesConfig = field(default_factory=CandidatesConfig)
    preference: PreferenceConfig = field(default_factory=PreferenceConfig)
    router: RouterConfig = field(default_factory=RouterConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    ablations: AblationsConfig = field(default_factory=AblationsConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)


@dataclass(frozen=True, kw_only=True)
class TaskSelection:
    """Not a section: the part of `data` that decides which tasks a roll-out plays, and under which hazards."""

    condition: str
    """The hazards' condition."""
    perturbation_seeds: list[int]
    """The i-th play seed meets the i-th of these (cyclic)."""
    split_seed: int
    """As `data.split_seed`."""
    split_by: Literal["task_id", "template_id"]
    """As `data.split_by`."""

    @classmethod
    def training(cls, config: Config) -> TaskSelection:
        """Under the conditions of training."""
        return cls(condition=config.data.condition, perturbation_seeds=config.data.perturbation_seeds.train,
                   split_seed=config.data.split_seed, split_by=config.data.split_by)

    @classmethod
    def evaluation(cls, config: Config, condition: str) -> TaskSelection:
        """Under a condition of the evaluation."""
        return cls(condition=condition, perturbation_seeds=config.data.perturbation_seeds.eval,
                   split_seed=config.data.split_seed, split_by=config.data.split_by)


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Merge defaults, a YAML file and `key=value` overrides into a checked Config.

    Raises UsageError (exit 2) in one line for a missing file, an unknown key (with the nearest one), a value
    of the wrong type, or a value that a section's own check refuses.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    where = "the defaults"
    try:
        merged = OmegaConf.structured(Config)
        if path is not None:
            where = str(path)
            merged = OmegaConf.merge(merged, _read_yaml(Path(path)))
        for override in overrides:
            where = f"--overrides {override}"
            _require_assignment(override)
            merged = OmegaConf.merge(merged, OmegaConf.from_dotlist([override]))
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise UsageError(f"{where}: {_explain(error)}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: not YAML: {' '.join(str(error).split())}") from error
    assert isinstance(config, Config)
    return config


def section(cls: type[S], values: dict[str, Any]) -> S:
    """One section from plain values, as `identity` gave them. Raises UsageError as `load` does."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), values))
    except OmegaConfBaseException as error:
        raise UsageError(f"{cls.__name__}: {_explain(error)}") from error
    assert isinstance(made, cls)
    return made


def _read_yaml(path: Path) -> Any:
    from omegaconf import DictConfig, OmegaConf

    if not path.is_file():
        raise UsageError(f"--config {path}: no such file")
    loaded = OmegaConf.load(path)
    if not isinstance(loaded, DictConfig):
        raise UsageError(f"{path}: holds a list, not sections such as `training: {{lr: 1e-3}}`")
    return loaded


def _require_assignment(override: str) -> None:
    key, equals, _ = override.partition("=")
    if not equals or not key:
        raise UsageError(f"--overrides {override}: expected key=value, e.g. training.lr=1e-3")
    if not key.startswith("env.options.") and key not in set(keys()):
        raise UsageError(f"--overrides {override}: unknown key {key}; {nearest(key, keys())}")


def _explain(error: Exception) -> str:
    """One line from an OmegaConf error: the key in full, what was got, what is allowed."""
    key = getattr(error, "full_key", None) or ""
    message = str(error).splitlines()[0]
    unknown = re.match(r"Key '(\w+)' not in", message)
    if unknown:
        return f"unknown key {key}; {nearest(str(key), keys())}"
    return f"{key}: {message}" if key else message


def keys(cls: type = Config, stem: str = "") -> Iterator[str]:
    """Every dotted key of the configuration, sections included."""
    import typing

    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        yield stem + item.name
        if dataclasses.is_dataclass(hints[item.name]):
            yield from keys(hints[item.name], f"{stem}{item.name}.")


def to_yaml(config: Any) -> str:
    """The configuration as YAML that `load` accepts again."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(config))


def identity(section: Any) -> Any:
    """A section as plain values with everything left out that cannot change a result: RUNTIME fields, and
    the split of the effective batch into micro-batches (only the product counts)."""
    if isinstance(section, TrainingConfig):
        return {name: identity(section.phase(name)) for name in PHASES}
    if dataclasses.is_dataclass(section):
        values = {f.name: identity(getattr(section, f.name))
                  for f in dataclasses.fields(section) if not f.metadata.get("runtime")}
        if isinstance(section, Phase):
            values["effective_batch"] = values.pop("batch_size") * values.pop("gradient_accumulation_steps")
        return values
    if isinstance(section, (list, tuple)):
        return [identity(item) for item in section]
    if isinstance(section, dict):
        return {key: identity(section[key]) for key in sorted(section)}
    return section
