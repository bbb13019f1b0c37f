"""Escalation in the cascade of two models: the LLM acts at a step iff the router's score reaches the threshold.

    needs_score(0.4)          # True: at 0 and below, or at 1 and above, the threshold alone decides
    escalates(0.7, 0.4)       # True

Both ends are exact: threshold 1 is slm_only and threshold 0 is llm_only, whatever a float score rounds to.
"""

from __future__ import annotations

MAX_SCORE = 1 - 1e-6
"""No score is above this, so that a threshold of 1 alone means never."""
SCORE_ONLY = 1 - 1e-9
"""A threshold that consults the router at every step and escalates at none: it lies above `MAX_SCORE` and below 1."""


def needs_score(threshold: float) -> bool:
    """True if a decision at this threshold depends on the score."""
    return 0 < threshold < 1


def recorded_score(score: float) -> float:
    """Return the score that is compared and recorded: rounded to 6 decimals, at most `MAX_SCORE`."""
    return min(round(score, 6), MAX_SCORE)


def escalates(score: float | None, threshold: float) -> bool:
    """True if the LLM acts: always at threshold <= 0, never at >= 1, else where the score reaches the threshold.
    `score` may be None only where `needs_score` is False."""
    if not needs_score(threshold):
        return threshold <= 0
    assert score is not None
    return score >= threshold
