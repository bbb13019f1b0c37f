"""Who answers: the teacher and the small policy; and what an answer costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from r2v.config.checks import RUNTIME, check, positive, probability


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
        check(self.temperature >= 0, "teacher.temperature", "must be at least 0", self.temperature)
        for name in ("max_tokens", "max_concurrent", "flush_seconds", "poll_seconds", "reconcile_after", "attempts"):
            positive(f"teacher.{name}", getattr(self, name))
        for name in ("max_usd", "batch_size", "queued_tokens"):
            if getattr(self, name) is not None:
                positive(f"teacher.{name}", getattr(self, name))
        probability("teacher.tail", self.tail)
        for name in ("usd_in", "usd_out", "hour_usd"):
            check((getattr(self, name) or 0) >= 0, f"teacher.{name}", "must be at least 0", getattr(self, name))


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
        check(self.lora_r >= 0, "policy.lora_r", "must be at least 0", self.lora_r)
        probability("policy.lora_dropout", self.lora_dropout)
        check(self.max_seq_len >= 32, "policy.max_seq_len", "must be at least 32", self.max_seq_len)
        check(
            self.load_in_4bit in (True, False, "auto"),
            "policy.load_in_4bit",
            "must be true, false or auto",
            self.load_in_4bit,
        )

    @property
    def effective_lora_alpha(self) -> int:
        """The LoRA scale in force."""
        return 2 * self.lora_r if self.lora_alpha is None else self.lora_alpha


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

    slm: Price = field(
        default_factory=lambda: Price(input=0.1, output=0.4, seconds_per_call=0.02, seconds_per_token=0.001)
    )
    """The small policy, on one's own machine."""
    llm: Price = field(
        default_factory=lambda: Price(input=3.0, output=12.0, seconds_per_call=0.6, seconds_per_token=0.02)
    )
    """The scripted teacher: thirty times the policy."""
    ratio: float = 30.0
    """Normalised cost of an LLM step; a policy step is 1."""
