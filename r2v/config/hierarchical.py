"""Hierarchical training: an answer, a hint, a better answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from r2v.config.checks import RUNTIME, check, positive, probability

BUNDLED_PROBLEMS = "bundled"
"""Stands for no file: word problems made by key."""


@dataclass(frozen=True, kw_only=True)
class ProblemsConfig:
    """What is to be solved."""

    path: str = BUNDLED_PROBLEMS
    """bundled: word problems made by key; or a JSONL file of {problem, answer}, GSM8K's and MATH's as they are."""
    checker: Literal["auto", "numeric", "exact", "boxed", "program"] = "auto"
    """How an answer is scored; auto looks at the answers of the file."""
    held_out: int = 200
    """Problems that are measured on and never trained on."""
    count: int = 2000
    """Problems that are trained on: made, where they are bundled; at most, where they come from a file."""

    def __post_init__(self) -> None:
        for name in ("held_out", "count"):
            positive(f"hierarchical.problems.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class GuidanceConfig:
    """Who gives a hint between two answers, and what it is paid."""

    enabled: bool = True
    """false: the actor is shown its first answer and no hint; nothing of guidance is trained."""
    hints: int = 2
    """Hints to one answer, each followed by an answer of its own."""
    baseline: Literal["loo", "value", "batch_mean"] = "loo"
    """What a hint's pay is compared with: the other hints to the same answer, a learned value, or the batch."""
    judging: float = 0.0
    """Pay for saying rightly whether the answer was right."""
    leak: float = 0.0
    """Taken off a hint that says the answer."""
    length: float = 0.0
    """Taken off per token of a hint."""
    sees_score: bool = False
    """Whether a hint is given in the knowledge of the answer's score."""

    def __post_init__(self) -> None:
        positive("hierarchical.guidance.hints", self.hints)
        check(
            self.baseline != "loo" or self.hints > 1,
            "hierarchical.guidance.hints",
            "must be 2 or more for baseline=loo, which compares them",
            self.hints,
        )
        for name in ("judging", "leak", "length"):
            check(
                getattr(self, name) >= 0, f"hierarchical.guidance.{name}", "must not be negative", getattr(self, name)
            )


@dataclass(frozen=True, kw_only=True)
class KLConfig:
    """What keeps a policy near the frozen base."""

    mode: Literal["loss", "reward"] = "loss"
    """Added to the loss, or taken off each token's weight."""
    first: float = 0.01
    """Weight at the first answer."""
    later: float = 0.01
    """Weight at the answers after it."""
    guidance: float = 0.01
    """Weight at hints."""

    def __post_init__(self) -> None:
        for name in ("first", "later", "guidance"):
            check(getattr(self, name) >= 0, f"hierarchical.kl.{name}", "must not be negative", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """What an utterance is worth (two heads, and a slow copy that they learn from)."""

    model_name: str = "tiny"
    """tiny: a small reader of the policy's own tokens, from random weights; or an encoder such as
    FacebookAI/roberta-base."""
    lr: float = 2e-5
    """AdamW's rate; not below the actor's."""
    tau: float = 0.1
    """Step of the slow copy after each update."""
    updates: int = 20
    """Updates an iteration."""
    warmup: int = 20
    """Iterations in which only the critic learns."""
    batch_size: int = 256
    """Transitions an update, over all ranks."""
    max_tokens: int = 256
    """What it reads of a text: the last so many tokens."""
    draws: int = 1
    """Answers drawn anew per state for the value's target; 0: the answers of the rollout itself."""
    pessimistic: bool = False
    """Both heads learn from the smaller of the two next values."""

    def __post_init__(self) -> None:
        for name in ("lr", "updates", "batch_size", "max_tokens"):
            positive(f"hierarchical.critic.{name}", getattr(self, name))
        for name in ("warmup", "draws"):
            check(getattr(self, name) >= 0, f"hierarchical.critic.{name}", "must not be negative", getattr(self, name))
        check(0 < self.tau <= 1, "hierarchical.critic.tau", "must be above 0 and at most 1", self.tau)


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """What the critic remembers."""

    capacity: int = 20_000
    """Turns."""
    max_age: int = 8
    """Updates of the guidance after which a turn before the last teaches no more."""

    def __post_init__(self) -> None:
        positive("hierarchical.replay.capacity", self.capacity)
        check(self.max_age >= 0, "hierarchical.replay.max_age", "must not be negative", self.max_age)


@dataclass(frozen=True, kw_only=True)
class HierarchicalConfig:
    """Answer, hint, better answer: reinforcement learning of an actor and of who guides it."""

    enabled: bool = False
    """Whether it is part of the chain of jobs; `r2v train_hierarchical` runs it in any case."""
    start: Literal["model", "bc"] = "model"
    """What both policies start from: policy.model_name as it is, or the bc policy of this pipeline."""
    problems: ProblemsConfig = field(default_factory=ProblemsConfig)
    turns: int = 2
    """Answers to a problem, hints between them."""
    rewards: list[float] = field(default_factory=lambda: [0.0, 1.0])
    """The actor's share in the score of each answer; none may be negative."""
    iterations: int = 100
    """Rollouts, each followed by its updates."""
    episodes: int = 64
    """Problems a rollout, over all ranks."""
    answer_tokens: int = 16
    """Longest answer."""
    hint_tokens: int = 8
    """Longest hint."""
    algorithm: Literal["reinforce", "ppo"] = "reinforce"
    """How a policy learns from an advantage."""
    updates: int = 1
    """Updates of each policy an iteration; more than one needs ppo."""
    clip: float = 0.2
    """PPO's range of the ratio."""
    lr: float = 1e-5
    """AdamW's rate of the actor."""
    guidance_lr: float = 1e-5
    """AdamW's rate of the guidance."""
    grad_clip: float = 1.0
    """Largest gradient norm, of each network by itself."""
    gamma: float = 0.95
    """Discount from one answer to the next."""
    discount_weight: bool = False
    """Whether later answers weigh gamma^t in the loss, as the discounted return asks."""
    advantage: Literal["v_of_min", "min_v", "gae", "score"] = "v_of_min"
    """The critic's, with an unbiased or ArCHer's baseline; generalised advantages; or the return less the batch's mean,
    which needs no critic (plain REINFORCE)."""
    gae_lambda: float = 0.95
    """0: one step; 1: the return."""
    per: Literal["sequence", "token"] = "sequence"
    """What the loss is a mean over."""
    token_baseline: bool = False
    """Whether a token's weight is less what was to be expected at that token."""
    guidance: GuidanceConfig = field(default_factory=GuidanceConfig)
    kl: KLConfig = field(default_factory=KLConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    placement: Literal["auto", "shared", "split", "full"] = field(default="auto", metadata=RUNTIME)
    """Where the roles stand: one frozen base with adapters; two GPUs and the CPU; or full copies."""
    shards: Literal["none", "fsdp", "zero2", "zero3"] = field(default="none", metadata=RUNTIME)
    """Whether the language models lie whole with every rank (none) or in parts, one with each (fsdp); with one rank
    they are whole. zero2 and zero3 are DeepSpeed's: an engine each for actor and guidance, under placement=full."""
    offload: bool = field(default=False, metadata=RUNTIME)
    """Whether with placement=full the reference and the critic's slow copy stand in the CPU's memory."""
    micro_batch: int | None = field(default=None, metadata=RUNTIME)
    """Rows at a time in an update; None: what the memory planner finds."""
    calibration: str | None = field(default=None, metadata=RUNTIME)
    """A file that `r2v plan --probe` left on a GPU of this kind: the plan of rows is corrected by it."""
    gradient_checkpointing: bool | None = field(default=None, metadata=RUNTIME)
    """Whether layers run again in backward instead of keeping what they computed; None: what the memory planner
    finds, and not where it does not plan (on a CPU)."""
    evaluate_every: int = 10
    """Iterations between measurements on the held-out problems; the last is always measured."""
    save_every: int = field(default=5, metadata=RUNTIME)
    """Iterations between checkpoints; a stop writes one at any phase."""

    def __post_init__(self) -> None:
        for name in (
            "iterations",
            "episodes",
            "answer_tokens",
            "hint_tokens",
            "updates",
            "lr",
            "guidance_lr",
            "grad_clip",
            "evaluate_every",
            "save_every",
        ):
            positive(f"hierarchical.{name}", getattr(self, name))
        for name in ("gamma", "gae_lambda", "clip"):
            probability(f"hierarchical.{name}", getattr(self, name))
        check(self.turns >= 2, "hierarchical.turns", "must be 2 or more", self.turns)
        check(
            len(self.rewards) == self.turns,
            "hierarchical.rewards",
            f"needs one share per turn ({self.turns})",
            self.rewards,
        )
        check(
            min(self.rewards) >= 0,
            "hierarchical.rewards",
            "must not be negative (an actor that is paid for its "
            "first answer's being wrong learns to give a wrong one; improvement is what the guidance is paid for)",
            self.rewards,
        )
        check(self.rewards[-1] > 0, "hierarchical.rewards", "must pay for the last answer", self.rewards)
        check(
            self.updates == 1 or self.algorithm == "ppo",
            "hierarchical.updates",
            "above 1 needs hierarchical.algorithm=ppo",
            self.updates,
        )
        check(
            self.micro_batch is None or self.micro_batch > 0,
            "hierarchical.micro_batch",
            "must be above 0",
            self.micro_batch,
        )
