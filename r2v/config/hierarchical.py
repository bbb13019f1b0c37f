"""Hierarchical training: an actor answers, a guidance model hints, the actor answers again; both are trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from r2v.constraints import (
    EVERYDAY_KEY,
    IF_GIVEN,
    RUNTIME,
    Count,
    CountOrNone,
    Line,
    NotNegative,
    PathText,
    Positive,
    PositiveShare,
    Range,
    Share,
    check,
    check_fields,
)
from r2v.extensions import is_dotted, require_name

BUNDLED_PROBLEMS = "bundled"
"""Value of `problems.path` for generated word problems."""
TASK_PROBLEMS = "tasks"
"""Value of `problems.path` for states of the benchmark's training tasks."""
UNKNOWN_TOKENS = 512
"""Longest answer in tokens if neither the configuration nor the problems give one, and in plans without problems."""
CHECKERS = ("auto", "numeric", "exact", "boxed", "program")
"""Checkers by name; others are given as package.module:function."""
_Tokens = Annotated[int, Range(at_least=1, at_most=1_000_000)]
_Few = Annotated[int, Range(at_least=1, at_most=1000)]


@dataclass(frozen=True, kw_only=True)
class ProblemsConfig:
    """The problems to solve."""

    path: PathText = BUNDLED_PROBLEMS
    """bundled: generated word problems; tasks: states of the training tasks of env.benchmark, in which an answer is an
    action and is scored by playing it; or a JSONL file of {problem, answer}; GSM8K's and MATH's files work as they
    are."""
    num_tasks: Count | None = field(default=None, metadata=IF_GIVEN)
    """With path=tasks: number of training tasks played for their states, from the first; None: all."""
    checker: Line = "auto"
    """Scoring of answers: numeric, exact, boxed, program; auto: chosen by the reference answers; or a function of your
    own, package.module:function (docs/extending/checker.md)."""
    instructions: Line | None = field(default=None, metadata=IF_GIVEN)
    """Instructions to the actor before a problem; None: to mark its final answer as the checker expects it."""
    unsafe: bool = field(default=False, metadata=RUNTIME)
    """Dangerous: the program checker runs code that the model wrote without a sandbox, with all your permissions. For
    machines without bubblewrap; never for models that you do not trust."""
    held_out: Count = 200
    """Number of problems for evaluation, never trained on."""
    count: Count = 2000
    """Number of training problems; a maximum if they come from a file or tasks."""

    def __post_init__(self) -> None:
        check_fields("hierarchical.problems", self)
        require_name("hierarchical.problems.checker", self.checker, CHECKERS)
        fits = self.path != TASK_PROBLEMS or self.checker == "auto"
        rule = "must be auto with problems.path=tasks, where an action is scored by playing it"
        check(fits, "hierarchical.problems.checker", rule, self.checker)


@dataclass(frozen=True, kw_only=True)
class GuidanceConfig:
    """The model that gives a hint between two answers, and its reward."""

    enabled: bool = True
    """false: no hints; the actor is only asked again, and no guidance is trained."""
    hints: _Few = 2
    """Hints per answer, each followed by an answer of its own."""
    baseline: Literal["loo", "value", "batch_mean"] = "loo"
    """Baseline of a hint's reward: loo: mean of the other hints to the same answer (leave one out); value: a learned
    value model; batch_mean: mean of all other hints."""
    reward: Line | None = field(default=None, metadata=IF_GIVEN)
    """Reward of a hint. None: the score after it less the score before it, with the terms below; or a function of your
    own, package.module:function (docs/extending/checker.md)."""
    judging: NotNegative = 0.0
    """Bonus for a hint whose verdict on the answer (right or wrong) is correct."""
    leak: NotNegative = 0.0
    """Penalty for a hint that contains the reference answer."""
    length: NotNegative = 0.0
    """Penalty per token of a hint."""
    sees_score: bool = False
    """The guidance is shown the answer's score."""

    def __post_init__(self) -> None:
        check_fields("hierarchical.guidance", self)
        own, rule = self.reward, "must be a path package.module:function, or null for the improvement"
        check(own is None or is_dotted(own), "hierarchical.guidance.reward", rule, own)
        rule = "must be 2 or more for baseline=loo, which compares them"
        check(self.baseline != "loo" or self.hints > 1, "hierarchical.guidance.hints", rule, self.hints)


@dataclass(frozen=True, kw_only=True)
class KLConfig:
    """KL penalty that keeps a policy near the frozen base."""

    mode: Literal["loss", "reward"] = "loss"
    """loss: added to the loss; reward: subtracted from each token's weight."""
    first: NotNegative = 0.01
    """Coefficient at the first answer."""
    later: NotNegative = 0.01
    """Coefficient at the later answers."""
    guidance: NotNegative = 0.01
    """Coefficient at hints."""


@dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """The critic: two Q and two V heads, trained on TD targets from a target network."""

    model_name: PathText = "tiny"
    """tiny: a small encoder of the policy's own tokens, from random weights; or a published encoder such as
    FacebookAI/roberta-base."""
    lr: Positive = 2e-5
    """Learning rate (AdamW); should not be below the actor's."""
    tau: PositiveShare = 0.1
    """Polyak coefficient: target <- (1 - tau) target + tau critic after each update, in (0, 1]."""
    updates: Count = 20
    """Updates per iteration."""
    warmup: CountOrNone = 20
    """Iterations in which only the critic is trained."""
    batch_size: Count = 256
    """Transitions per update, over all ranks."""
    max_tokens: _Tokens = 256
    """Maximum tokens that the critic reads of a text, from its end."""
    draws: Annotated[int, Range(at_least=0, at_most=1000)] = 1
    """Answers resampled per state for the V targets; 0: the rollout's own answers are used."""
    pessimistic: bool = False
    """Both Q heads use the smaller of the two next values as target (clipped double Q)."""

    @property
    def published(self) -> bool:
        """True if the encoder is a published one, loaded from files."""
        return self.model_name != "tiny"


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """The critic's replay buffer."""

    capacity: Count = 20_000
    """Transitions kept."""
    max_age: CountOrNone = 8
    """Updates of the guidance after which a transition is no longer sampled; terminal ones are always sampled."""


@dataclass(frozen=True, kw_only=True)
class HierarchicalConfig:
    """Reinforcement learning of an actor and a guidance model that gives it hints."""

    enabled: bool = field(default=False, metadata=EVERYDAY_KEY)
    """Include stage 10 in the chain of jobs; `r2v train_hierarchical` runs it in any case."""
    start: Literal["model", "bc"] = "model"
    """Initial weights of both policies: policy.model_name unchanged, or this pipeline's bc policy."""
    problems: ProblemsConfig = field(default_factory=ProblemsConfig)
    turns: _Few = 2
    """Answers per problem; hints come between them. 1: no hints, plain reinforcement learning."""
    rewards: list[Annotated[float, Range()]] = field(default_factory=lambda: [0.0, 1.0])
    """Weights of the answers' scores in the actor's reward, first to last; none may be negative."""
    iterations: Count = 100
    """Iterations: a rollout and the updates from it."""
    episodes: Count = 64
    """Problems per rollout, over all ranks."""
    group: Count = 1
    """Episodes per problem in a rollout, each with its own first answer; rloo and grpo compare them."""
    answer_tokens: _Tokens | None = None
    """Longest answer, in tokens; None: from the lengths of the file's worked solutions."""
    hint_tokens: _Tokens | None = None
    """Longest hint, in tokens; None: a quarter of an answer."""
    algorithm: Literal["reinforce", "ppo"] = "reinforce"
    """Policy gradient algorithm."""
    updates: Count = 1
    """Updates of each policy per iteration; more than one needs ppo."""
    clip: Share = 0.2
    """PPO's clipping range of the probability ratio."""
    lr: Positive = 1e-5
    """Learning rate of the actor (AdamW)."""
    guidance_lr: Positive = 1e-5
    """Learning rate of the guidance (AdamW)."""
    lr_warmup: CountOrNone = 0
    """Iterations over which both rates rise from 0, after the critic's warm-up."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Both rates after the warm-up: constant, or decaying to 0 at the last iteration, linearly or by a cosine."""
    optimizer: Literal["adamw", "adamw_fused"] = "adamw"
    """adamw: torch's AdamW; adamw_fused: its fused one, without temporary copies of the weights. DeepSpeed's shards use
    its own AdamW."""
    grad_clip: Positive = 1.0
    """Largest gradient norm, per network."""
    gamma: Share = 0.95
    """Discount from one answer to the next."""
    discount_weight: bool = False
    """Weight later answers by gamma^t in the loss, as in the exact gradient of the discounted return."""
    advantage: Literal["v_of_min", "min_v", "gae", "score", "rloo", "grpo"] = "v_of_min"
    """v_of_min: critic with an unbiased baseline; min_v: critic with ArCHer's; gae: generalised advantage estimation.
    Without a critic: score: return less the batch's mean (plain REINFORCE); rloo: return less the mean of the other
    answers to the same problem; grpo: return less their mean, over their standard deviation."""
    normalize_advantages: bool = False
    """Normalise the advantages of each policy to mean 0 and standard deviation 1 in every batch."""
    gae_lambda: Share = 0.95
    """GAE's lambda. 0: one-step TD; 1: the full return."""
    per: Literal["sequence", "token"] = "sequence"
    """Unit over which the loss is averaged: sequences or tokens."""
    token_baseline: bool = False
    """Subtract a learned per-token baseline from the advantage."""
    entropy: NotNegative = 0.0
    """Coefficient of the bonus for the entropy of both policies."""
    guidance: GuidanceConfig = field(default_factory=GuidanceConfig)
    kl: KLConfig = field(default_factory=KLConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    placement: Literal["auto", "shared", "split", "full"] = field(default="auto", metadata=RUNTIME)
    """Placement of the models. shared: one frozen base with adapters; split: two GPUs and the CPU; full: copies."""
    shards: Literal["none", "fsdp", "zero2", "zero3"] = field(default="none", metadata=RUNTIME)
    """Sharding of the language models over ranks: none; fsdp (FSDP2); zero2 or zero3 (DeepSpeed, an engine each for
    actor and guidance, needs placement=full). With one rank nothing is sharded."""
    offload: bool = field(default=False, metadata=RUNTIME)
    """With placement=full: keep the reference and the target network in CPU memory."""
    micro_batch: Count | None = field(default=None, metadata=RUNTIME)
    """Rows per micro-batch; None: the memory planner's choice."""
    calibration: PathText | None = field(default=None, metadata=RUNTIME)
    """File written by `r2v plan --model NAME --probe FILE` on a GPU of this kind; it corrects the memory plan."""
    gradient_checkpointing: bool | None = field(default=None, metadata=RUNTIME)
    """Recompute layers in backward instead of keeping activations; None: the memory planner's choice, and false on a
    CPU, where it does not plan."""
    evaluate_every: Count = 10
    """Iterations between evaluations on the held-out problems; the last is always evaluated."""
    patience: Count | None = None
    """Consecutive evaluations without a better last answer after which training ends; None: never. The best actor and
    the last are kept in any case."""
    save_every: Count = field(default=5, metadata=RUNTIME)
    """Iterations between checkpoints; a stopped run writes one after its current phase."""

    def __post_init__(self) -> None:
        check_fields("hierarchical", self)
        key, paid = "hierarchical.rewards", self.rewards
        check(len(paid) == self.turns, key, f"needs one share per turn ({self.turns})", paid)
        rule = (
            "must not be negative (an actor that is rewarded for a wrong first answer learns to give one; improvement "
            "is what the guidance is rewarded for)"
        )
        check(min(paid) >= 0, key, rule, paid)
        rule = "must be 2 or more with guidance, which stands between answers (or set guidance.enabled=false)"
        check(self.turns > 1 or not self.guidance.enabled, "hierarchical.turns", rule, self.turns)
        compares = self.advantage in ("rloo", "grpo")
        rule = f"must be 2 or more for advantage={self.advantage}, which compares answers to the same problem"
        check(self.group > 1 or not compares, "hierarchical.group", rule, self.group)
        check(paid[-1] > 0, key, "must pay for the last answer", paid)
        fits = self.updates == 1 or self.algorithm == "ppo"
        check(fits, "hierarchical.updates", "above 1 needs hierarchical.algorithm=ppo", self.updates)

    @property
    def longest_answer(self) -> int:
        """`answer_tokens`, or `UNKNOWN_TOKENS` before the data is read."""
        return self.answer_tokens or UNKNOWN_TOKENS

    @property
    def longest_hint(self) -> int:
        """`hint_tokens`, or a quarter of an answer."""
        return self.hint_tokens or max(1, self.longest_answer // 4)

    @property
    def has_critic(self) -> bool:
        """True if advantages come from a critic, which is then trained."""
        return self.advantage not in ("score", "rloo", "grpo")
