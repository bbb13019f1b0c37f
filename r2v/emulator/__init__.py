"""Loopback emulator of the OpenAI and Anthropic APIs, for their official clients.

    with Emulator(answer="game", faults=[Fault("commit_then_reset", at=1)]) as emulator:
        client = openai.OpenAI(base_url=emulator.openai_url, api_key="any")
        ...
        assert emulator.ledger().paid() == {("run", "conversation", 0): 1}

It serves synchronous calls, files and batches of both providers, injects the faults of `r2v.emulator.faults` by name,
has adjustable limits, and records every paid request in a billing ledger on disk. `r2v providers emulate` serves the
same to another process.
"""

from r2v.emulator.answers import Answer, EmulatedRequest, game
from r2v.emulator.emulator import Emulator
from r2v.emulator.faults import FAULT_POINTS, Fault
from r2v.emulator.ledger import read_ledger, turn_of
from r2v.emulator.limits import EmulatedLimits, Lifecycle, ProviderLimits, Timing

__all__ = [
    "FAULT_POINTS",
    "Answer",
    "EmulatedLimits",
    "EmulatedRequest",
    "Emulator",
    "Fault",
    "Lifecycle",
    "ProviderLimits",
    "Timing",
    "game",
    "read_ledger",
    "turn_of",
]
