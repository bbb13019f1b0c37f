"""Spending: the journal of what was paid, and the budget that no request may cross."""
