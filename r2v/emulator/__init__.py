"""Loopback emulator of the OpenAI and Anthropic APIs, for their official clients.

    with Emulator(answer="game", faults=[Fault("commit_then_reset", at=1)]) as emulator:
        client = openai.OpenAI(base_url=emulator.openai_url, api_key="any")
        ...
        assert emulator.ledger().paid() == {("run", "conversation", 0): 1}

It serves synchronous calls, files and batches of both providers, injects the faults of `r2v.emulator.faults` by name,
has adjustable limits, and records every paid request in a billing ledger on disk. `r2v providers emulate` serves the
same to another process.

Names are loaded on first use, so that the command line can describe `emulate` without importing the server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r2v.emulator.answers import Answer as Answer
    from r2v.emulator.answers import EmulatedRequest as EmulatedRequest
    from r2v.emulator.answers import echo as echo
    from r2v.emulator.answers import game as game
    from r2v.emulator.emulator import Emulator as Emulator
    from r2v.emulator.faults import FAULT_POINTS as FAULT_POINTS
    from r2v.emulator.faults import Fault as Fault
    from r2v.emulator.ledger import Bill as Bill
    from r2v.emulator.ledger import Statement as Statement
    from r2v.emulator.ledger import read_ledger as read_ledger
    from r2v.emulator.ledger import turn_of as turn_of
    from r2v.emulator.limits import EmulatedLimits as EmulatedLimits
    from r2v.emulator.limits import Lifecycle as Lifecycle
    from r2v.emulator.limits import ProviderLimits as ProviderLimits
    from r2v.emulator.limits import Timing as Timing

_MODULES = {
    "answers": ("Answer", "EmulatedRequest", "echo", "game"),
    "emulator": ("Emulator",),
    "faults": ("FAULT_POINTS", "Fault"),
    "ledger": ("Bill", "Statement", "read_ledger", "turn_of"),
    "limits": ("Lifecycle", "EmulatedLimits", "ProviderLimits", "Timing"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
