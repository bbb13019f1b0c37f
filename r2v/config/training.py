"""Configuration of training: optimisation phases, verifier, candidates and preference pairs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Annotated, Any, Literal, get_args

from r2v.constraints import (
    EVERYDAY_KEY,
    IF_GIVEN,
    RUNTIME,
    Count,
    Names,
    NotNegative,
    OneOf,
    PathText,
    Positive,
    PositiveShare,
    Range,
    Seeds,
    Share,
    Temperature,
    check,
    check_fields,
)
from r2v.errors import UsageError

PhaseName = Literal["bc", "preference", "verifier"]
PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
OptimizerName = Literal["adamw", "adamw_8bit", "paged_adamw_8bit"]


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """Optimisation of one phase; a field that is None inherits from `training`."""

    num_epochs: Positive | None = None
    """Passes over the phase's data; None: training.num_epochs."""
    lr: Positive | None = None
    """Peak learning rate; None: training.lr."""
    batch_size: Count | None = None
    """Examples per device and micro-batch; None: training.batch_size."""
    gradient_accumulation_steps: Count | None = None
    """Micro-batches per update; None: training.gradient_accumulation_steps."""
    weight_decay: Share | None = None
    """AdamW's decoupled weight decay; None: training.weight_decay."""
    max_examples: Count | None = None
    """Maximum number of training examples, sampled by key; None: all."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Optimisation of one phase, all fields resolved (`TrainingConfig.phase`)."""

    num_epochs: Positive
    lr: Positive
    batch_size: Count
    gradient_accumulation_steps: Count
    weight_decay: Share
    warmup_ratio: Share
    grad_clip: NotNegative
    save_steps: Count = field(metadata=RUNTIME)
    max_examples: Count | None
    optimizer: OptimizerName | None = field(default=None, metadata=IF_GIVEN)
    """None: torch's AdamW."""
    ranks: Count | None = field(default=None, metadata=RUNTIME)
    zero: Annotated[int, OneOf(values=(0, 2, 3))] = field(default=0, metadata=RUNTIME)
    deepspeed: PathText | None = field(default=None, metadata=RUNTIME)
    fsdp: bool = field(default=False, metadata=RUNTIME)

    def require_optimizer(self) -> None:
        """Raise UsageError for an optimizer that is not installed."""
        if self.optimizer is not None and find_spec("bitsandbytes") is None:
            raise UsageError(
                f"training.optimizer={self.optimizer}: bitsandbytes is not installed; pip install 'r2v[gpu]', or leave "
                "it at adamw"
            )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Optimisation. The blocks bc, preference and verifier inherit fields that they do not set. The router has none: it
    is fitted to convergence on all rows at once (router.model, router.l2)."""

    num_epochs: Positive = field(default=6.0, metadata=EVERYDAY_KEY)
    """Passes over the data (epochs)."""
    lr: Positive = field(default=4e-3, metadata=EVERYDAY_KEY)
    """Peak learning rate (AdamW, linear decay)."""
    batch_size: Count = field(default=16, metadata=EVERYDAY_KEY)
    """Examples per device and micro-batch."""
    gradient_accumulation_steps: Count = field(default=1, metadata=EVERYDAY_KEY)
    """Micro-batches per update."""
    weight_decay: Share = 0.01
    """AdamW's decoupled weight decay, in [0, 1]."""
    warmup_ratio: Share = 0.15
    """Share of the updates in which the learning rate rises to its peak, in [0, 1]."""
    grad_clip: NotNegative = 1.0
    """Largest gradient norm; a larger one is scaled down to it; 0: never."""
    save_steps: Count = field(default=200, metadata=RUNTIME)
    """Updates between checkpoints."""
    optimizer: OptimizerName | None = field(default=None, metadata=IF_GIVEN)
    """adamw or None: torch's AdamW; adamw_8bit: bitsandbytes' (`pip install 'r2v[gpu]'`), whose moments take a quarter
    of the memory, except those of embeddings; paged_adamw_8bit: the same with moments that can move to CPU memory. The
    8-bit ones cannot be sharded, and were not run on a GPU with this version."""
    ranks: Count | None = field(default=None, metadata=RUNTIME)
    """Data-parallel processes of bc and preference, one GPU each; None: one per visible GPU. They divide an update's
    batch, so their number changes results by rounding only."""
    zero: Annotated[int, OneOf(values=(0, 2, 3))] = field(default=0, metadata=RUNTIME)
    """DeepSpeed ZeRO stage of bc and preference: 0, nothing is sharded; 2, gradients and optimizer states; 3, the
    weights too."""
    deepspeed: PathText | None = field(default=None, metadata=RUNTIME)
    """Path of a custom DeepSpeed configuration, in place of `zero`; None: none."""
    fsdp: bool = field(default=False, metadata=RUNTIME)
    """Shard weights, gradients and optimizer states of bc and preference by torch's own FSDP2, in place of `zero`;
    needs no other package, and GPUs."""
    bc: PhaseConfig = field(default_factory=PhaseConfig)
    """Behaviour cloning."""
    preference: PhaseConfig = field(default_factory=lambda: PhaseConfig(num_epochs=2.0, lr=2e-4, weight_decay=0.0))
    """DPO."""
    verifier: PhaseConfig = field(default_factory=lambda: PhaseConfig(num_epochs=4.0, lr=4e-3))
    """The verifier: its head and backbone."""

    def __post_init__(self) -> None:
        check_fields("training", self)
        rule = "replaces training.zero, which must be 0"
        check(self.deepspeed is None or self.zero == 0, "training.deepspeed", rule, self.zero)
        shards = self.deepspeed or self.zero
        rule = "replaces training.zero and training.deepspeed, which must be left out"
        check(not self.fsdp or not shards, "training.fsdp", rule, shards)
        rule = "must be adamw with training.zero, training.deepspeed or training.fsdp: 8-bit moments are not sharded"
        fits = self.optimizer in (None, "adamw") or not (shards or self.fsdp)
        check(fits, "training.optimizer", rule, self.optimizer)

    def phase(self, name: PhaseName) -> Phase:
        """Return the phase's optimisation: its own fields if set, else those of `training`."""
        block: PhaseConfig = getattr(self, name)
        values: dict[str, Any] = {f.name: getattr(block, f.name, None) for f in dataclasses.fields(Phase)}
        for key, value in values.items():
            if value is None and key != "max_examples":
                values[key] = getattr(self, key)
        if values["optimizer"] == "adamw":
            values["optimizer"] = None  # the default keeps the fingerprint of configurations without the key
        return Phase(**values)


@dataclass(frozen=True, kw_only=True)
class VerifierConfig:
    """The verifier: a scalar head on the base of `policy.model_name` that learns labels of steps. Later stages score
    actions with it."""

    mode: Literal["trained", "llm_judge"] = "trained"
    """trained: learns the labels of `label_sources`; llm_judge: learns the scores of the teacher's model as a judge,
    which needs a provider's teacher."""
    label_sources: Names = field(default_factory=lambda: ["auto"])
    """Exactly one of outcome, td, corrupted, judge, consensus (corrupted ones that the judge confirms) and auto. auto:
    judge under mode=llm_judge; else corrupted if the benchmark is deterministic and the teacher scripted, or so
    successful that outcomes teach nothing and teacher.max_usd is set; else outcome. If all labels are of one class, the
    verifier and everything that reads it are left out."""
    gae_lambda: Share = 0.9
    """Lambda of td labels: 1 is the episode's outcome at every step, 0 the value of the next step. The folds of the
    values go one level deep: labels that a fold's verifier learns from are values of models that saw that fold."""
    num_tasks: Count = 200
    """Number of training tasks labelled by executed corruptions, or by the judge."""
    num_corruptions: Count = 4
    """Wrong actions executed and continued per task, or judged per episode."""
    discount: Share = 0.4
    """Discount of a success per extra step, in [0, 1]; 1 would label every recoverable mistake as correct."""

    def __post_init__(self) -> None:
        check_fields("verifier", self)
        key, sources = "verifier.label_sources", self.label_sources
        allowed = ("auto", "outcome", "td", "corrupted", "judge", "consensus")
        rule = f"must be one of {', '.join(f'[{name}]' for name in allowed)}"
        check(len(sources) == 1 and sources[0] in allowed, key, rule, sources)
        fits = self.mode == "trained" or sources[0] in ("auto", "judge")
        check(fits, key, "must be [judge] or [auto] under verifier.mode=llm_judge", sources)


@dataclass(frozen=True, kw_only=True)
class CandidatesConfig:
    """The candidates: K actions per state, each continued by execution."""

    num_samples: Annotated[int, Range(at_least=1, at_most=10_000)] = field(default=5, metadata=EVERYDAY_KEY)
    """K: actions sampled per state, from one shared prefix."""
    temperature: Temperature = 0.7
    """Sampling temperature of the candidates; 0: greedy."""
    top_p: PositiveShare = 0.95
    """Nucleus sampling: probability mass of the candidates."""
    num_tasks: Count = 150
    """Number of training tasks whose states are sampled."""
    with_teacher: bool = True
    """Add the teacher's action at every state as a candidate, at one teacher call per state."""
    continuation: Literal["auto", "slm", "teacher"] = "auto"
    """Policy that continues after a candidate to determine its value. slm: the small policy, which may fail after any
    candidate; teacher: the teacher, at one call per step of every branch; auto: a scripted teacher, which is free, else
    slm."""
    discount: Share = 0.4
    """Discount of a success per step beyond the shortest one from the same state, in [0, 1]; 1: only success counts."""
    num_folds: Annotated[int, Range(at_least=2, at_most=1000)] = 2
    """Cross-fitting folds: the verifier that scores a candidate was not trained on its task."""

    def resolved(self, provider: str) -> CandidatesConfig:
        """Return the section with `continuation=auto` resolved for a teacher of this provider."""
        if self.continuation != "auto":
            return self
        return dataclasses.replace(self, continuation="teacher" if provider == "scripted" else "slm")


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig:
    """Policy improvement on executed candidates by DPO: the pairs, and the acceptance test of the trained policy."""

    enabled: bool = True
    """Train; false publishes the bc policy unchanged."""
    accept: Literal["interval", "higher", "always"] = "interval"
    """Condition under which the trained policy replaces the cloned one. interval: the gain of success on calibration
    tasks is positive, and so is the 95 % interval's lower end; higher: the gain is positive; always: without a test.
    Otherwise the clone is published, with the verdict."""
    accept_tasks: Count | None = None
    """Calibration tasks that both policies play in the test; None: all. The verdict names the smallest difference that
    so many tasks can detect."""
    accept_seeds: Seeds = field(default_factory=lambda: [11, 12])
    """Seeds of the test's episodes."""
    pair_mode: Literal["outcome", "verifier_margin", "consensus", "teacher_vs_slm"] = "outcome"
    """Criterion that orders two actions at the same state. outcome: executed values; verifier_margin: verifier scores;
    consensus: verifier scores if executed values agree; teacher_vs_slm: the teacher's action over the policy's."""
    min_margin: NotNegative = 0.2
    """Smallest difference of verifier scores in a pair."""
    min_value_gap: NotNegative = 0.34
    """Smallest difference of executed values in a pair."""
    max_pairs_per_task: Count = 6
    """Maximum number of pairs of a task."""
    beta: Positive = 0.1
    """beta of DPO: strength of the regularisation towards the reference policy."""
    sft_weight: NotNegative = 0.2
    """Weight of the negative log-likelihood of the chosen action, added to the DPO loss."""

    def pairing(self) -> PreferenceConfig:
        """Return the fields that pairs depend on; the others are constants, kept out of the pairs' fingerprint."""
        default = PreferenceConfig()
        return dataclasses.replace(
            self,
            enabled=True,
            beta=1.0,
            sft_weight=0.0,
            accept=default.accept,
            accept_tasks=default.accept_tasks,
            accept_seeds=default.accept_seeds,
        )
