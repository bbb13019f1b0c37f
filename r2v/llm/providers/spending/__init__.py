"""Spending: the journal of all payments, and the budget that no request may exceed."""
