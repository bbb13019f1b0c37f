"""How good is this action here? Executed labels, a small head that learns them, and an LLM judge."""
