"""What an emulated provider's ledger says was paid for, counted."""

from __future__ import annotations

from collections import Counter

from r2v.emulator.ledger import Statement


def paid_ids(said: Statement) -> Counter[str]:
    """How often each custom_id was paid for."""
    return Counter(bill.custom_id for bill in said.bills if bill.custom_id is not None)


def paid_bodies(said: Statement) -> Counter[str]:
    """How often each request body (its SHA-256) was paid for, whatever it was called."""
    return Counter(bill.body_sha256 for bill in said.bills)
