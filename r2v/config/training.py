"""What is trained: phases of optimisation, the verifier, candidates and preferences."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from r2v.config.checks import RUNTIME, check, positive, probability

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
    preference: PhaseConfig = field(default_factory=lambda: PhaseConfig(num_epochs=2.0, lr=2e-4, weight_decay=0.0))
    """DPO."""
    verifier: PhaseConfig = field(default_factory=lambda: PhaseConfig(num_epochs=4.0, lr=4e-3))
    """The verifier's head and backbone."""
    router: PhaseConfig = field(default_factory=PhaseConfig)
    """Empty: logistic and boosting routers take no steps, their knobs are `router.l2` and `router.model`."""

    def __post_init__(self) -> None:
        for name in ("num_epochs", "lr", "batch_size", "gradient_accumulation_steps", "save_steps"):
            for block in ("", "bc.", "preference.", "verifier."):
                value = getattr(getattr(self, block[:-1]) if block else self, name)
                check(value is None or value > 0, f"training.{block}{name}", "must be above 0", value)
        probability("training.warmup_ratio", self.warmup_ratio)
        check(self.ranks is None or self.ranks > 0, "training.ranks", "must be above 0", self.ranks)
        check(self.zero in (0, 2, 3), "training.zero", "must be 0, 2 or 3", self.zero)
        check(self.deepspeed is None or self.zero == 0, "training.deepspeed", "goes without training.zero", self.zero)
        given = {name: value for name, value in vars(self.router).items() if value is not None}
        check(not given, "training.router", "has nothing to set: the router is fitted to the end, see router.*", given)

    def phase(self, name: PhaseName) -> Phase:
        """The phase's knobs: its own where given, else `training`'s."""
        block: PhaseConfig = getattr(self, name)
        values: dict[str, Any] = {f.name: getattr(block, f.name, None) for f in dataclasses.fields(Phase)}
        for key, value in values.items():
            if value is None and key != "max_examples":
                values[key] = getattr(self, key)
        return Phase(**values)


@dataclass(frozen=True, kw_only=True)
class VerifierConfig:
    """What a step's action is judged by. A scalar head on the base of `policy.model_name` learns the labels, and is
    what later stages ask."""

    mode: Literal["trained", "llm_judge"] = "trained"
    """trained: from labels of `label_sources`; llm_judge: from the scores of the teacher's model as a judge, which
    needs a teacher that is a provider's."""
    label_sources: list[str] = field(default_factory=lambda: ["auto"])
    """One of: outcome, corrupted, judge, or auto: judge under llm_judge, else corrupted where the teacher is scripted
    and the benchmark deterministic, else outcome."""
    num_tasks: int = 200
    """Training tasks whose steps are labelled by executed corruptions, or by the judge."""
    num_corruptions: int = 4
    """Wrong actions played on per task, or judged per episode."""
    discount: float = 0.4
    """Worth of a success per step of detour: 1 would count every mistake that can be mended as right."""

    def __post_init__(self) -> None:
        allowed = ("auto", "outcome", "corrupted", "judge")
        check(
            len(self.label_sources) == 1 and self.label_sources[0] in allowed,
            "verifier.label_sources",
            f"must be one of {', '.join(f'[{name}]' for name in allowed)}",
            self.label_sources,
        )
        check(
            self.mode == "trained" or self.label_sources[0] in ("auto", "judge"),
            "verifier.label_sources",
            "must be [judge] or [auto] under verifier.mode=llm_judge",
            self.label_sources,
        )
        positive("verifier.num_tasks", self.num_tasks)


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
        check(self.num_samples >= 1, "candidates.num_samples", "must be at least 1", self.num_samples)
        check(self.temperature >= 0, "candidates.temperature", "must be at least 0", self.temperature)
        check(self.num_folds >= 2, "candidates.num_folds", "must be at least 2", self.num_folds)


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
        positive("preference.beta", self.beta)

    def pairing(self) -> PreferenceConfig:
        """What making the pairs depends on; what concerns DPO alone is evened out."""
        return dataclasses.replace(self, enabled=True, beta=1.0, sft_weight=0.0)
