"""Counts of paid requests, from an emulated provider's ledger."""

from __future__ import annotations

from collections import Counter

from r2v.emulator.ledger import Statement


def paid_ids(statement: Statement) -> Counter[str]:
    """Return how often each custom_id was billed."""
    return Counter(bill.custom_id for bill in statement.bills if bill.custom_id is not None)


def paid_bodies(statement: Statement) -> Counter[str]:
    """Return how often each request body (by SHA-256) was billed, under any custom_id."""
    return Counter(bill.body_sha256 for bill in statement.bills)
