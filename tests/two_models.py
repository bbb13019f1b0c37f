"""Answers of two emulated models at the desk: the large one is its expert, the small one slips."""

from __future__ import annotations

from r2v.emulator.answers import EmulatedRequest
from r2v.envs.desk.emulated import answer as expert
from r2v.randomness import uniform

LARGE, SMALL = "claude-haiku-4-5", "gpt-5-nano"
SLIPS = 0.15
"""Share of the small model's actions in which it stops too early."""


def answer(request: EmulatedRequest) -> str:
    """Return the reply of either model."""
    slips = request.model == SMALL and uniform("slips", *request.key) < SLIPS
    return '{"tool":"done"}' if slips else expert(request)
