"""Verifier: scores of an action in its context, by a head trained on executed labels or by an LLM judge."""
