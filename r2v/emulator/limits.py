"""Limits and timing of the emulated providers; tests lower them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Lifecycle:
    """Progress of a batch from accepted to ended: over `polls` polls, or over `seconds` from its creation if given.
    With the default, the first poll shows it in progress, the last but one finalizing."""

    polls: int = 3
    seconds: float | None = None

    def progress(self, polls: int, age: float) -> float:
        """Return the progress, 0 just accepted to 1 ended, after `polls` polls at `age` seconds."""
        if self.seconds is not None:
            return 1.0 if self.seconds <= 0 else min(1.0, max(0.0, age) / self.seconds)
        return 1.0 if self.polls <= 0 else min(1.0, polls / self.polls)


@dataclass(frozen=True, kw_only=True)
class ProviderLimits:
    """Limits of one provider's batches."""

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
    """Limits of both providers; the defaults are the published ones of every usage tier."""

    openai: ProviderLimits = field(default_factory=lambda: ProviderLimits(requests=50_000, bytes=200_000_000))
    anthropic: ProviderLimits = field(default_factory=lambda: ProviderLimits(requests=100_000, bytes=256_000_000))
    calls_per_minute: int | None = None
    """Refill rate of each provider's bucket in synchronous calls per minute; None: no limit."""
    burst: int = 10
    """Capacity of the bucket in synchronous calls."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Durations of faults and of synchronous calls, in seconds."""

    silence: float = 60.0
    """`commit_then_silence`: seconds without a byte before the connection is cut."""
    late: float = 2.0
    """`file_late_*`, `listed_late`: seconds from creation until the object is visible."""
    skew: float = -3600.0
    """`clock_skew`: the server's clock minus the true one."""
    trickle: float = 0.05
    """`slow_trickle`: pause between two pieces of a result file."""
    trickle_bytes: int = 256
    """`slow_trickle`: bytes in a piece."""
    latency: float = 0.0
    """Seconds of a synchronous call."""
