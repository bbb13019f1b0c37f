"""Limits and timing of the emulated providers. Every figure can be lowered to make a test small."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Lifecycle:
    """How a batch gets from accepted to ended: after `polls` polls, or `seconds` after its creation where
    that is given. The first poll finds it in progress, the last but one finalizing."""

    polls: int = 3
    seconds: float | None = None

    def progress(self, polls: int, age: float) -> float:
        """How far a batch is after so many polls at this age (seconds): 0 just accepted, 1 ended."""
        if self.seconds is not None:
            return 1.0 if self.seconds <= 0 else min(1.0, max(0.0, age) / self.seconds)
        return 1.0 if self.polls <= 0 else min(1.0, polls / self.polls)


@dataclass(frozen=True, kw_only=True)
class ProviderLimits:
    """The limits of one provider's batches."""

    requests: int
    """Requests in one batch."""
    bytes: int
    """Bytes of one input file (OpenAI) or one create call (Anthropic)."""
    batches_per_hour: int = 2_000
    queued_tokens: int | None = None
    """Prompt tokens of one model in batches that have not ended (OpenAI)."""
    queued_requests: int | None = None
    """Requests in batches that have not ended (Anthropic)."""


@dataclass(frozen=True, kw_only=True)
class EmulatedLimits:
    """The limits of both providers; the defaults are the published ones that hold in every usage tier."""

    openai: ProviderLimits = field(default_factory=lambda: ProviderLimits(requests=50_000, bytes=200_000_000))
    anthropic: ProviderLimits = field(default_factory=lambda: ProviderLimits(requests=100_000, bytes=256_000_000))
    calls_per_minute: int | None = None
    """Synchronous calls that refill the bucket in a minute, for each provider; None: no limit."""
    burst: int = 10
    """Synchronous calls the bucket holds."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds that faults take, and what the synchronous calls take without one."""

    silence: float = 60.0
    """`commit_then_silence`: seconds without a byte before the connection is cut."""
    late: float = 2.0
    """`file_late_*`, `listed_late`: how long after its creation a thing is found."""
    skew: float = -3600.0
    """`clock_skew`: the server's clock minus the true one."""
    trickle: float = 0.05
    """`slow_trickle`: pause between two pieces of a result file."""
    trickle_bytes: int = 256
    """`slow_trickle`: bytes in a piece."""
    latency: float = 0.0
    """A synchronous call's."""
